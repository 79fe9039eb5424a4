"""Prints lines for people, or with ``TORCHFT_X_LOG_FORMAT=json`` one JSON object per line for log collectors.

An object has the fields ``t`` (Unix seconds) and ``message``, and, if known, ``level``, ``role``, ``group``, ``rank`` and
``stream`` (``stdout`` or ``stderr`` of a script). An event (docs/events.md) has ``event`` instead of ``message``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from torchft_x import env


def line(text: str, level: str = "info", *, environ: Mapping[str, str] | None = None, **who: Any) -> str:
    """Return `text` in the output format. The text format omits `level` and `who`; JSON omits fields that are None."""
    return as_json(text, level, **who) if env.wants_json(environ) else text


def write(text: str, stream: TextIO | None) -> None:
    """Print a line in one write, so that no other role's line comes between it and its end.

    In the unbuffered Python of jobs, `print` makes two writes, and TorchX forwards each part that it reads. Ignore a closed
    stream and a full disk: the job goes on.
    """
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):
            stream.write(text + "\n")
            stream.flush()


def print_line(text: str, level: str = "info", **who: Any) -> None:
    """Print a line on stderr."""
    write(line(text, level, **who), sys.stderr)


def as_json(text: str, level: str | None = None, t: float | None = None, **who: Any) -> str:
    """Return a JSON object on one line, for any characters in `text`. `t` is in Unix seconds, None for now."""
    at = round(time.time() if t is None else t, 6)
    fields = {
        "message": text,
        "level": level,
        "t": at,
        **who,
    }  # "t" is not first: a line that begins with it is an event
    return json.dumps({name: value for name, value in fields.items() if value is not None}, default=str)


def wrapped(output: bytes, **who: Any) -> bytes:
    """Return a line of a script's output as JSON, without the line end. A JSON object stays as it is."""
    stripped = output.strip()
    if stripped.startswith(b"{") and stripped.endswith(b"}"):
        try:
            json.loads(stripped)
            return stripped
        except ValueError:
            pass
    return as_json(output.decode("utf-8", "replace").rstrip("\r\n"), **who).encode()


class JsonFormatter(logging.Formatter):
    """Formatter of `logging` records as JSON, with the traceback of an exception in ``message``."""

    def __init__(self, readable: Callable[[str], str] = str, **who: Any) -> None:
        super().__init__("%(message)s")
        self._readable = readable
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        text = self._readable(super().format(record))
        return as_json(text, record.levelname.lower(), record.created, **self._who)
