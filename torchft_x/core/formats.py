"""Names of the formats in which values may travel: for those who don't load torch. What they are: `comm.quantized.format`."""

from __future__ import annotations

FORMATS = ("int8", "int4", "fp8")
