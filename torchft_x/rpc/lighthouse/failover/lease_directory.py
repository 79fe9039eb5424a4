"""The register of `core.restart.lease` in a directory that all lighthouses of a job share: one file, whose name is the entry.

A swap is a rename, which every POSIX file system does as a whole, and a network file system at its server: of all who rename
the same file one succeeds, the others are told that it isn't there. So neither locks nor clocks are needed, and an old
listing, as a network file system may show it for a minute, does no harm: whoever acts on one fails. The directory itself is
put there by a rename, with the first file in it, so that two who begin at the same time make one.

What the medium must keep: a rename that was acknowledged is not undone (an NFS export with ``sync``, as is usual).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from pathlib import Path

from torchft_x.core.restart.lease import LeaseEntry

MAX_NOTE = 1024
"""Bytes of a note that are read."""

_NAME = re.compile(r"(\d{1,18})-(\d{1,18})-(free|[0-9a-f]{1,64})(?:-over(\d{1,3}))?")
_FREE = "free"  # not hexadecimal, so nobody's name


class LeaseDirectory:
    """A `Register`. Made by `open_lease`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"LeaseDirectory({self.folder})"

    def __str__(self) -> str:
        return str(self.folder)

    def read(self) -> LeaseEntry | None:
        found = [entry for name in os.listdir(self.folder) if (entry := parse_name(name)) is not None]
        return max(
            found, key=lambda e: (e.epoch, e.count), default=None
        )  # a listing during a rename may show none, or two

    def swap(self, expected: LeaseEntry, new: LeaseEntry) -> bool:
        there = self._path(new)
        try:
            os.rename(self._path(expected), there)
        except FileNotFoundError:
            return there.exists()  # an earlier try of ours was carried out, and its answer was lost
        return True

    def mend(self, epoch: int) -> bool:
        """Put an entry there again where somebody has deleted it: of `epoch`, the newest that has written a journal. Nobody is
        its owner, so that it is watched before it is followed. False: there is one, or no sign that there was. Raises `OSError`.
        """
        if not epoch or (self.folder.is_dir() and self.read() is not None):
            return False
        return _make(self.folder, LeaseEntry(epoch, 0, secrets.token_hex(8)))

    def leave_note(self, entry: LeaseEntry, text: str) -> None:
        """For people: where the holder serves. Nothing depends on it."""
        with contextlib.suppress(OSError):
            fd = os.open(
                self._path(entry), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC
            )  # not made: it may have been renamed
            try:
                os.write(fd, text.encode())
            finally:
                os.close(fd)

    def note(self, entry: LeaseEntry) -> str:
        """What the holder has left there; empty if that can't be read now."""
        try:
            with open(self._path(entry), "rb") as f:
                return f.read(MAX_NOTE).decode(errors="replace").strip()
        except OSError:
            return ""

    def _path(self, entry: LeaseEntry) -> Path:
        return self.folder / entry_name(entry)


def entry_name(entry: LeaseEntry) -> str:
    """The file's name that is this entry."""
    over = "" if entry.verdict is None else f"-over{entry.verdict}"
    return f"{entry.epoch}-{entry.count}-{entry.owner or _FREE}{over}"


def parse_name(name: str) -> LeaseEntry | None:
    """None: that is another file."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    epoch, count, owner, verdict = match.groups()
    return LeaseEntry(
        int(epoch), int(count), "" if owner == _FREE else owner, None if verdict is None else int(verdict)
    )


def open_lease(folder: Path, *, make: bool = True, epoch: int = 0) -> LeaseDirectory:
    """The register there. Made if it is absent, in a directory that must be there: where nothing is mounted any more no other
    one shall begin. `epoch`: see `LeaseDirectory.mend`. Raises `OSError`."""
    register = LeaseDirectory(folder)
    if not folder.is_dir() and not register.mend(epoch):
        if not make:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        _make(folder, LeaseEntry(0))
    return register


def _make(folder: Path, entry: LeaseEntry) -> bool:
    """Whether it was not there, or empty."""
    made = folder.with_name(f".{folder.name}-{secrets.token_hex(8)}")
    made.mkdir(mode=0o700)
    try:
        (made / entry_name(entry)).touch(mode=0o600)
        os.rename(made, folder)  # fails if another one's is there that is not empty, whatever a listing shows
    except OSError as e:
        if e.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return False
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return True
