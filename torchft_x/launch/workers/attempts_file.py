"""Attempts file: a supervisor's report to its parent, and to the supervisor that replaces it when it was killed.

The file is one line of JSON, replaced atomically. A supervisor without a path (``--attempts_file``) has none.
"""

from __future__ import annotations

import contextlib
import json
import signal
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from torchft_x.atomic_file import replace_file
from torchft_x.json_values import from_json

_KEPT = 8  # ended attempts that are listed


class EndedAttempt(NamedTuple):
    """Ended attempt whose end may not have been reported to the lighthouse."""

    number: int
    token: str
    code: int  # exit code, or -signal


@dataclass(frozen=True, kw_only=True)
class AttemptsReport:
    """Content of the attempts file. It continues when the supervisor is replaced."""

    restarts: int = 0
    """Number of restarts, of the workers or of the lighthouse's server."""
    reason: str = ""
    """Reason of the last restart."""
    number: int | None = None
    """Number of the newest attempt; None before the first."""
    token: str = ""
    """Token of that attempt while it runs, otherwise ''."""
    ends: tuple[EndedAttempt, ...] = ()
    """Newest ended attempts, the oldest first. If the lighthouse was away, it may not know of their ends: after two deaths
    of the supervisor in a row it would wait for the first attempt."""

    def ended(self, code: int) -> AttemptsReport:
        """Return the report after the end of the running attempt with this exit code or -signal."""
        assert self.number is not None
        ends = (*self.ends, EndedAttempt(self.number, self.token, code))
        return replace(self, token="", ends=ends[-_KEPT:])

    def inherited(self) -> AttemptsReport:
        """Return the report for the next supervisor. An attempt that ran was killed with its supervisor."""
        return self.ended(-signal.SIGKILL) if self.token and self.number is not None else self


def write(report: AttemptsReport, path: Path | None) -> None:
    """Write the attempts file. Ignore a full disk: without the file, an attempt that dies with us is waited for."""
    if path is not None:
        with contextlib.suppress(OSError):
            replace_file(path, json.dumps(asdict(report)))


def read(path: Path | None) -> AttemptsReport:
    """Return the content of an attempts file, or the defaults if the file is missing or can't be parsed."""
    if path is not None:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            return from_json(AttemptsReport, json.loads(path.read_text("utf-8")[:65536]))
    return AttemptsReport()
