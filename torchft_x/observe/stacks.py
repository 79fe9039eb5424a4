"""Parser of Python stacks as ``faulthandler`` (torch's ``dump_traceback``) prints them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.+)$')
_LIBRARIES = re.compile(r"/(site|dist)-packages/|/lib/python\d|/torchft_x/|^<frozen ")


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.short}:{self.line})"

    @property
    def short(self) -> str:
        """File name, with its folder if the file is a library's."""
        return "/".join(self.file.split("/")[-2:]) if self.is_library else self.file.rsplit("/", 1)[-1]

    @property
    def is_library(self) -> bool:
        """Whether the file is Python's, an installed package's or ours, and so not the user's."""
        return _LIBRARIES.search(self.file) is not None


def parse(text: str) -> dict[str, list[Frame]]:
    """Return the frames by thread id (as printed), the innermost first."""
    threads: dict[str, list[Frame]] = {}
    frames: list[Frame] = []
    for line in text.splitlines():
        if found := _THREAD.match(line):
            frames = threads.setdefault(found[1], [])
        elif found := _FRAME.match(line):
            frames.append(Frame(found[1], int(found[2]), found[3]))
    return threads


def place(frames: list[Frame]) -> str:
    """Describe a thread's position for people: the innermost frame, and the user's function that led there."""
    if not frames:
        return ""
    theirs = next((f for f in frames if not f.is_library), None)
    if theirs is None or theirs == frames[0]:
        return str(frames[0])
    return f"{frames[0]}, called from {theirs}"
