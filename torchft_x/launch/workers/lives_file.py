"""What a supervisor says of itself to whoever keeps it running: how often it has started what it keeps running, and why last.

A file of one line of JSON, replaced as a whole. Only a supervisor that was given the path (TORCHFT_X_LIVES_FILE) writes it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from torchft_x import env


@dataclass(frozen=True)
class Lives:
    restarts: int
    reason: str
    """Of the last one."""


def tell(restarts: int, reason: str, environ: Mapping[str, str]) -> None:
    """Nothing depends on it: a full disk is left alone."""
    path = env.read(env.LIVES_FILE, None, environ)
    if path is not None:
        with contextlib.suppress(OSError):
            Path(f"{path}.new").write_text(json.dumps(asdict(Lives(restarts, reason))), "utf-8")
            os.replace(f"{path}.new", path)


def read(path: Path) -> Lives | None:
    """None: it has said nothing that can be read."""
    try:
        found = json.loads(path.read_text("utf-8")[:65536])
        return Lives(int(found["restarts"]), str(found["reason"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
