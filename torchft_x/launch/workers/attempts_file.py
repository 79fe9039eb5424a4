"""Attempts file: a supervisor's report to its parent, and to the supervisor that replaces it when it was killed.

The file is one line of JSON, replaced atomically. A supervisor without a path (``--attempts_file``) has none. The newest
attempt is enough: the next supervisor starts none before its session with the lighthouse, in which it reports that end first.
Earlier attempts whose ends the killed one could not report are fenced (R2), and over once a connect is refused or a lease ends.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from torchft_x.atomic_file import replace_file
from torchft_x.json_values import from_json


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
    """Token of that attempt."""
    code: int | None = None
    """Its exit code, or -signal. None while it runs; the next supervisor then knows that it was killed with this one."""


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
