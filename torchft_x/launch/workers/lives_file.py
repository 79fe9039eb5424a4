"""What a supervisor says of itself to whoever keeps it running: how often it has started what it keeps running, why last, and
which life runs now.

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
    runs: str = ""
    """NUMBER:TOKEN of the life that runs; only NUMBER: of the newest one, which has ended, and the lighthouse has been told how;
    empty: there was none."""

    def after(self, before: str) -> str:
        """What the next supervisor is told, if this one was told `before`."""
        return self.runs or before


def tell(lives: Lives, environ: Mapping[str, str]) -> None:
    """A full disk is left alone: without it a life that dies with its supervisor is waited for."""
    path = env.read(env.LIVES_FILE, None, environ)
    if path is not None:
        with contextlib.suppress(OSError):
            Path(f"{path}.new").write_text(json.dumps(asdict(lives)), "utf-8")
            os.replace(f"{path}.new", path)


def read(path: Path) -> Lives | None:
    """None: it has said nothing that can be read."""
    try:
        found = json.loads(path.read_text("utf-8")[:65536])
        return Lives(int(found["restarts"]), str(found["reason"]), str(found.get("runs", "")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def life_before(environ: Mapping[str, str]) -> tuple[int, str] | None:
    """Number and token of the life that died with the supervisor in whose place this one is. None: there is none, or nobody
    can say that it is dead."""
    number, token = _before(environ)
    return (number, token) if number is not None and token else None


def next_number(environ: Mapping[str, str]) -> int | None:
    """Of the first life of a supervisor in the place of another one. None: it does not know."""
    number, _ = _before(environ)
    return None if number is None else number + 1


def _before(environ: Mapping[str, str]) -> tuple[int | None, str]:
    number, _, token = (env.read(env.LIFE_BEFORE, None, environ) or "").partition(":")
    return (int(number) if number.isascii() and number.isdecimal() else None), token
