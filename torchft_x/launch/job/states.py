"""States of a job, and of its replicas, with TorchX's names, and the reader of files with a job's state."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torchft_x.errors import TorchftXError

PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED = "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"
ALIVE = (PENDING, RUNNING)
OVER = (SUCCEEDED, FAILED, CANCELLED)
STATES = (*ALIVE, *OVER)
HEALTH_FAILED = "the health command"
"""First words of the reason for which a group is given up because its host failed `--health`."""
_LIMIT = 1 << 24  # bytes; enough for thousands of replicas
T = TypeVar("T")


class UnreadableError(TorchftXError, ValueError):
    """Error: the file with a job's state can't be read. `missing` is whether it does not exist."""

    def __init__(self, sentence: str, *, missing: bool = False) -> None:
        super().__init__(sentence)
        self.missing = missing


def read_state(path: Path, parse: Callable[[Any], T], missing: str) -> T:
    """Return what `parse` makes of a file's JSON. Raise `UnreadableError`, with the reason `missing` if there is no file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # so that a named pipe can't block the reader
        with os.fdopen(fd, "rb") as f:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise UnreadableError(f"{path} is no file.")
            text = f.read(_LIMIT)
    except (FileNotFoundError, NotADirectoryError):
        raise UnreadableError(f"There is no {path}: {missing}.", missing=True) from None
    except OSError as e:
        raise UnreadableError(f"{path} can't be read ({e.strerror}).") from None
    try:
        return parse(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UnreadableError(f"{path} is torn, or not a job's: nothing can be said of it.") from None
