"""Lines of a file that is still being written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

_LOOK = 0.1  # seconds between looks
_CHUNK = 65536


def follow(path: Path, finished: Callable[[], bool]) -> Iterator[str]:
    """Lines with their ends, until it is `finished` and all that was written before is read. Waits for the file, too."""
    partial = ""
    done = False
    while not path.exists():
        if done:
            return
        done = finished()
        time.sleep(0 if done else _LOOK)
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        while True:
            done = finished()  # before the reading: what was written by then will be read
            while text := file.read(_CHUNK):
                *lines, partial = (partial + text).split("\n")
                yield from (line + "\n" for line in lines)
            if done:
                break
            time.sleep(_LOOK)
    if partial:
        yield partial + "\n"
