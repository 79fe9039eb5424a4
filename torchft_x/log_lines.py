"""Lines that a process prints for people; with ``TORCHFT_X_LOG_FORMAT=json`` one JSON object each, for log collectors.

Fields of such an object: ``t`` (unix seconds), ``message``, and where known ``level``, ``role``, ``group``, ``rank``, ``stream``
(``stdout`` or ``stderr`` of a script). An event (docs/events.md) has ``event`` instead of ``message``.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from torchft_x import env


def line(text: str, level: str = "info", *, environ: Mapping[str, str] | None = None, **who: Any) -> str:
    """`text` as it is to be printed; `who` said it is left out of a line for people. Fields that are None are missing."""
    return as_json(text, level, **who) if env.wants_json(environ) else text


def write(text: str, stream: TextIO | None) -> None:
    """Print a line in one write. Jobs run Python unbuffered, where `print` makes two, and TorchX passes on what it has read:
    a line of another role would come between this one and its end."""
    if stream is not None:
        stream.write(text + "\n")
        stream.flush()


def say(text: str, level: str = "info", **who: Any) -> None:
    """Print a line on stderr. That nobody reads it any more, or the disk is full, is no reason to stop."""
    try:
        write(line(text, level, **who), sys.stderr)
    except (OSError, ValueError):
        pass


def as_json(text: str, level: str | None = None, t: float | None = None, **who: Any) -> str:
    """One line whatever `text` has in it."""
    at = round(time.time() if t is None else t, 6)
    fields = {"message": text, "level": level, "t": at, **who}  # an event begins with "t", by which programs find it
    return json.dumps({name: value for name, value in fields.items() if value is not None}, default=str)


def wrapped(output: bytes, **who: Any) -> bytes:
    """A line of a script's output, without its end, as JSON. One that is a JSON object already stays as it is."""
    stripped = output.strip()
    if stripped.startswith(b"{") and stripped.endswith(b"}"):
        try:
            json.loads(stripped)
            return stripped
        except ValueError:
            pass
    return as_json(output.decode("utf-8", "replace").rstrip("\r\n"), **who).encode()


class JsonFormatter(logging.Formatter):
    """Records of `logging`, with the traceback of an exception in ``message``."""

    def __init__(self, readable: Callable[[str], str] = str, **who: Any) -> None:
        super().__init__("%(message)s")
        self._readable = readable
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        text = self._readable(super().format(record))
        return as_json(text, record.levelname.lower(), record.created, **self._who)
