"""Names of the wire formats for values, for code that does not load torch. `comm.quantized.format` defines them."""

from __future__ import annotations

FORMATS = ("int8", "int4", "fp8")
