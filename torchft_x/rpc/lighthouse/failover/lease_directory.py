"""The register of `core.lighthouse.lease` in a directory that all lighthouses of a job share: a file named as the entry.

A swap is a rename. It is atomic on every POSIX file system, and on a network file system at its server. If several
lighthouses rename the same file, one succeeds, and the others' renames fail because the file is missing. So neither
locks nor clocks are needed. A network file system may show an old listing for a minute; that does no harm, since a
rename based on it fails. The directory itself is created by a rename, with the first file in it, so that two
lighthouses that start at the same time create one.

The file system must not undo an acknowledged rename (an NFS export with ``sync``, as is usual).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from pathlib import Path

from torchft_x.core.lighthouse.lease import LeaseEntry

MAX_NOTE = 1024
"""Bytes that are read of a note."""

_NAME = re.compile(r"(\d{1,18})-(\d{1,18})-(free|[0-9a-f]{1,64})(?:-over(\d{1,3}))?")
_FREE = "free"  # not hexadecimal, so no owner has this name


class LeaseDirectory:
    """`Register` in a directory. Made by `open_lease`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"LeaseDirectory({self.folder})"

    def __str__(self) -> str:
        return str(self.folder)

    def read(self) -> LeaseEntry | None:
        found = [entry for name in os.listdir(self.folder) if (entry := parse_name(name)) is not None]
        # A listing during a rename may show none, or two.
        return max(found, key=lambda e: (e.epoch, e.count), default=None)

    def swap(self, expected: LeaseEntry, new: LeaseEntry) -> bool:
        there = self._path(new)
        try:
            os.rename(self._path(expected), there)
        except FileNotFoundError:
            return there.exists()  # true if an earlier try of ours succeeded and its answer was lost
        return True

    def mend(self, epoch: int) -> bool:
        """Create an entry again if it was deleted, and return whether it was created. Raises `OSError`.

        `epoch` is the newest that has written a journal; 0 if none has, so that none shows that there was an entry. The
        new entry has a random owner, so that every contender waits one time-to-live before it takes the lease."""
        if not epoch or (self.folder.is_dir() and self.read() is not None):
            return False
        return _make(self.folder, LeaseEntry(epoch, 0, secrets.token_hex(8)))

    def leave_note(self, entry: LeaseEntry, text: str) -> None:
        """Write where the holder serves, for people. No code depends on it."""
        with contextlib.suppress(OSError):
            # Without O_CREAT, because the file may have been renamed.
            fd = os.open(self._path(entry), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
            try:
                os.write(fd, text.encode())
            finally:
                os.close(fd)

    def note(self, entry: LeaseEntry) -> str:
        """Return the note that the holder has written; '' if it can't be read now."""
        try:
            with open(self._path(entry), "rb") as f:
                return f.read(MAX_NOTE).decode(errors="replace").strip()
        except OSError:
            return ""

    def _path(self, entry: LeaseEntry) -> Path:
        return self.folder / entry_name(entry)


def entry_name(entry: LeaseEntry) -> str:
    """Return the file name that represents an entry."""
    over = "" if entry.verdict is None else f"-over{entry.verdict}"
    return f"{entry.epoch}-{entry.count}-{entry.owner or _FREE}{over}"


def parse_name(name: str) -> LeaseEntry | None:
    """Return the entry that a file name represents, or None if it is another file's name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    epoch, count, owner, verdict = match.groups()
    return LeaseEntry(
        int(epoch), int(count), "" if owner == _FREE else owner, None if verdict is None else int(verdict)
    )


def open_lease(folder: Path, *, make: bool = True, epoch: int = 0) -> LeaseDirectory:
    """Open the register in `folder`, and create it if it is absent. Raises `OSError`.

    The parent directory must exist, so that no second register begins where the file system is no longer mounted.
    `epoch`: see `LeaseDirectory.mend`."""
    register = LeaseDirectory(folder)
    if not folder.is_dir() and not register.mend(epoch):
        if not make:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        _make(folder, LeaseEntry(0))
    return register


def _make(folder: Path, entry: LeaseEntry) -> bool:
    """Create the folder with an entry in it. Return False if a folder that is not empty exists. Raises `OSError`."""
    made = folder.with_name(f".{folder.name}-{secrets.token_hex(8)}")
    made.mkdir(mode=0o700)
    try:
        (made / entry_name(entry)).touch(mode=0o600)
        os.rename(made, folder)  # fails if a folder exists there that is not empty, even if a listing doesn't show it
    except OSError as e:
        if e.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return False
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return True
