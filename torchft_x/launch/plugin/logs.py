"""Follows a log file that is still being written and is rotated when it gets too large (launch.process.output)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from torchft_x.launch.process.output import OLD_LOGS, put_aside

_LOOK = 0.1  # seconds between polls
_CHUNK = 65536


def follow(path: Path, finished: Callable[[], bool]) -> Iterator[str]:
    """Yield lines with their ends, beginning with the oldest kept file, until `finished` returns True.

    All lines written before that are read. Wait for the file to appear.
    """
    done = False
    while (file := _after(path, None)) is None:
        if done:
            return
        done = finished()
        time.sleep(0 if done else _LOOK)
    partial = ""
    while file is not None:
        done = finished()  # before the read, so that all lines written by then are read
        newer = _after(path, file)  # before the read: nothing more is written to this file once a newer one exists
        while text := file.read(_CHUNK):
            *lines, partial = (partial + text).split("\n")
            yield from (line + "\n" for line in lines)
        if newer is not None or done:
            file.close()
            file = newer
        else:
            time.sleep(_LOOK)
    if partial:
        yield partial + "\n"


def _after(path: Path, file: TextIO | None) -> TextIO | None:
    """Return the log file after this one, which may have been renamed, or the oldest if `file` is None or gone; None if there is none."""
    found = None
    for name in (path, *(put_aside(path, number) for number in range(1, OLD_LOGS + 1))):  # the newest first
        try:
            candidate = name.open(encoding="utf-8", errors="replace", newline="\n")
        except OSError:
            continue
        if file is not None and os.path.sameopenfile(candidate.fileno(), file.fileno()):
            candidate.close()
            return found
        if found is not None:
            found.close()
        found = candidate
    return found
