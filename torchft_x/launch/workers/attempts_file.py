"""Attempts file: a supervisor's report to its parent, which restarts it: restarts, last reason, present attempt.

The file is one line of JSON, replaced atomically. A supervisor without a path (``--attempts_file``) writes none.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

KEPT = 8
"""Number of ended attempts that are listed."""


@dataclass(frozen=True)
class AttemptsReport:
    """Content of the attempts file."""

    restarts: int
    """Number of restarts by this supervisor."""
    reason: str
    """Reason of the last restart."""
    runs: str = ""
    """NUMBER:TOKEN of the running attempt, or NUMBER of the newest one after it has ended, or '' before the first.

    It is followed, after commas, by NUMBER:TOKEN:CODE of ended attempts. If the lighthouse was away, it may not know of
    their
    ends: after two deaths of the supervisor in a row it would wait for the first attempt.
    """

    def after(self, before: str) -> str:
        """Return the value of `runs` for the next supervisor, if this one was given `before`."""
        return self.runs or before


def write(attempts: AttemptsReport, path: Path | None) -> None:
    """Write the attempts file. Ignore a full disk: without the file, an attempt that dies with us is waited for."""
    if path is not None:
        with contextlib.suppress(OSError):
            Path(f"{path}.new").write_text(json.dumps(asdict(attempts)), "utf-8")
            os.replace(f"{path}.new", path)


def read(path: Path) -> AttemptsReport | None:
    """Return the content of an attempts file, or None if the file is missing or can't be parsed."""
    try:
        found = json.loads(path.read_text("utf-8")[:65536])
        return AttemptsReport(int(found["restarts"]), str(found["reason"]), str(found.get("runs", "")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


@dataclass(frozen=True)
class EndedAttempt:
    """Ended attempt whose end may not have been reported to the lighthouse."""

    number: int
    token: str
    code: int  # exit code, or -signal

    def __str__(self) -> str:
        return f"{self.number}:{self.token}:{self.code}"


def runs(newest: str, ends: Sequence[EndedAttempt]) -> str:
    """Return the value of `AttemptsReport.runs`. `ends` has the oldest first.

    `newest` is NUMBER:TOKEN of the running attempt, or NUMBER of the newest one.
    """
    return ",".join([newest, *map(str, ends[-KEPT:])])


def ends_before(before: str) -> list[EndedAttempt]:
    """Return the attempts that ended under this supervisor's predecessors, the oldest first.

    `before` is their newest `AttemptsReport.runs`. If `died_with_it`, the last one died with its supervisor.
    """
    newest, *others = before.split(",")
    told = [(n, token, code) for n, token, code in map(_split, others) if _whole(n) and _code(code)]
    ends = [EndedAttempt(int(n), token, int(code)) for n, token, code in told]
    number, token, _ = _split(newest)
    return [*ends, EndedAttempt(int(number), token, -signal.SIGKILL)] if _whole(number) and token else ends


def died_with_it(before: str) -> bool:
    """Return whether an attempt ran when the supervisor before this one died."""
    return bool(_split(before.partition(",")[0])[1])


def next_number(before: str) -> int | None:
    """Return the number of this supervisor's first attempt, if a predecessor recorded its own; else None."""
    number, _, _ = _split(before.partition(",")[0])
    return int(number) + 1 if _whole(number) else None


def _split(word: str) -> tuple[str, str, str]:
    number, _, rest = word.partition(":")
    token, _, code = rest.partition(":")
    return number, token, code


def _whole(number: str) -> bool:
    return number.isascii() and number.isdecimal()


def _code(code: str) -> bool:
    return _whole(code.removeprefix("-"))
