"""The Role of docs/kubernetes.md, which has all rights that our commands need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

PAGE = Path(__file__).parents[4] / "docs/kubernetes.md"


def role() -> dict[str, Any]:
    """Return the Role, with the additional rules for `torchft_x` behind the others."""
    lines = PAGE.read_text("utf-8").partition("\n## Rights\n")[2].partition("\n## ")[0].splitlines()
    found: dict[str, Any] = yaml.safe_load("\n".join(line for line in lines if line.startswith("    ")))
    return found
