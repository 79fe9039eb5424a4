"""What a supervisor says of itself to whoever keeps it running: how often it has started what it keeps running, why last, and
which life runs now.

A file of one line of JSON, replaced as a whole. Only a supervisor that was given the path (TORCHFT_X_LIVES_FILE) writes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torchft_x import env

KEPT = 8
"""Ends that are named."""


@dataclass(frozen=True)
class Lives:
    restarts: int
    reason: str
    """Of the last one."""
    runs: str = ""
    """NUMBER:TOKEN of the life that runs; only NUMBER: of the newest one, which has ended; empty: there was none. Behind it, with
    commas, NUMBER:TOKEN:CODE of lives that have ended: the lighthouse may have been away, and then two deaths in a row of the
    supervisor would leave it waiting for the first life."""

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


@dataclass(frozen=True)
class EndedLife:
    """A life of which the lighthouse may not have heard that it has ended. `code`: exit code, or -signal."""

    number: int
    token: str
    code: int

    def __str__(self) -> str:
        return f"{self.number}:{self.token}:{self.code}"


def runs(life: str, ends: Sequence[EndedLife]) -> str:
    """Return `Lives.runs`: `life` is NUMBER:TOKEN of the life that runs, or NUMBER of the newest one; `ends` the oldest first."""
    return ",".join([life, *map(str, ends[-KEPT:])])


def ends_before(environ: Mapping[str, str]) -> list[EndedLife]:
    """Return the lives that ended under supervisors in whose place this one is, the oldest first. The last one died with its
    supervisor, if `died_with_it`."""
    newest, *before = _words(environ)
    ends = [EndedLife(int(n), token, int(code)) for n, token, code in map(_split, before) if _whole(n) and _code(code)]
    number, token, _ = _split(newest)
    return [*ends, EndedLife(int(number), token, -signal.SIGKILL)] if _whole(number) and token else ends


def died_with_it(environ: Mapping[str, str]) -> bool:
    """Return whether a life ran when the supervisor before this one died."""
    return bool(_split(_words(environ)[0])[1])


def next_number(environ: Mapping[str, str]) -> int | None:
    """Return the number of this supervisor's first life, if it takes the place of another one that has told it; else None."""
    number, _, _ = _split(_words(environ)[0])
    return int(number) + 1 if _whole(number) else None


def _words(environ: Mapping[str, str]) -> list[str]:
    return (env.read(env.LIFE_BEFORE, None, environ) or "").split(",")


def _split(word: str) -> tuple[str, str, str]:
    number, _, rest = word.partition(":")
    token, _, code = rest.partition(":")
    return number, token, code


def _whole(number: str) -> bool:
    return number.isascii() and number.isdecimal()


def _code(code: str) -> bool:
    return _whole(code.removeprefix("-"))
