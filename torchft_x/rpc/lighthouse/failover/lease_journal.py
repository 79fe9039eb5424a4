"""The journal of the lighthouse that holds the lease: one file for each epoch, in the directory that all of them share.

A holder's file begins as a copy of the newest one before it. The former holder confirmed that one before it sent any of
its content. The new file appears as a whole or not at all, and only its holder writes to it. So a former holder that
was stopped for long writes only to a file that no lighthouse reads any more.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from torchft_x.core.lighthouse.lease import LeaseEntry
from torchft_x.errors import ConfigError
from torchft_x.rpc.lighthouse.failover.journal import MAX_JOURNAL, Journal
from torchft_x.rpc.lighthouse.failover.lease import Lease

_NAME = "journal."  # prefix of a file's name; the epoch follows
_MOST = 3 * MAX_JOURNAL  # bytes of a file: two places and a header
_BEGIN = 64  # bytes at the start of a file; all are zero if it was never written


def open_epoch_journal(
    folder: Path, entry: LeaseEntry, lease: Lease, *, boot_id: str, run: bytes
) -> tuple[Journal, bool]:
    """Open the journal of this epoch. Call it while the lease is held. Raises `ConfigError`.

    The second value is whether no lighthouse has written yet, so that no quorum was issued."""
    path = folder / f"{_NAME}{entry.epoch}"
    part = folder / f".{_NAME}{entry.epoch}-{entry.owner}"
    try:
        before = _newest_before(folder, entry.epoch)
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if before is not None:
                _copy(before, fd)
            first = not os.pread(fd, _BEGIN, 0).strip(b"\0")
            os.fsync(fd)
            os.rename(part, path)
        except BaseException:
            os.close(fd)
            raise
    except OSError as e:
        raise ConfigError(
            f"{path} can't be made ({e.strerror or e}); make room there, or name another directory."
        ) from None
    _remove_before(folder, entry.epoch)
    return Journal(fd, str(path), boot_id, run, lease), first


def newest_epoch(folder: Path) -> int:
    """Return the newest epoch that has a journal in `folder`; 0 if there is none."""
    numbers = (path.name.removeprefix(_NAME) for path in folder.glob(f"{_NAME}*"))
    epoch = max((int(number) for number in numbers if number.isdigit()), default=0)
    while (folder / f"{_NAME}{epoch + 1}").exists():  # because a listing may be old
        epoch += 1
    return epoch


def _newest_before(folder: Path, epoch: int) -> Path | None:
    """Return the newest journal before `epoch`, or None. It tries each name, because a listing may be old."""
    paths = (folder / f"{_NAME}{e}" for e in range(epoch - 1, 0, -1))
    return next((path for path in paths if path.exists()), None)


def _copy(source: Path, fd: int) -> None:
    left = _MOST
    with open(source, "rb") as f:
        while left > 0 and (data := f.read(min(left, 1 << 20))):
            left -= len(data)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]


def _remove_before(folder: Path, epoch: int) -> None:
    for path in folder.glob(f"{_NAME}*"):
        number = path.name.removeprefix(_NAME)
        if number.isdigit() and int(number) < epoch:
            with contextlib.suppress(OSError):
                path.unlink()
