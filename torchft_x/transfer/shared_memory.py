"""Memory that another process of this host and of the same user may read directly.

The source tells its name to a reader that has shown the token. The reader opens it through /proc, where the kernel
checks whether the reader may inspect the source at all. There is no listener, and nothing to clean up: the memory has
no path and is freed with the last process that has it open. The name holds a random tag, so no other file is ever
mistaken for it, on this host or on another one.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import secrets
import weakref

import torch
from torch import Tensor

from torchft_x.transfer.format.memory import allocate, physical_memory

log = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{1,10})/(\d{1,10})/([0-9a-f]{32})(?:/(\d{1,15}))?")


class Buffer:
    """Memory of a snapshot."""

    def __init__(self, data: Tensor, name: str | None = None, *, lent: bool = False) -> None:
        self.data = data  # uint8
        self.name = name  # by which processes of this host find it; None: it is private to this process
        self.lent = lent  # whether it is on loan, and its owner wants it back


def allocate_buffer(nbytes: int, *, pinned: bool = False, shared: bool = True) -> Buffer:
    """Allocate uninitialised memory, shared if asked, possible and not `pinned`. Raises RuntimeError if it fails."""
    if shared and not pinned and hasattr(os, "memfd_create") and nbytes <= physical_memory():  # else raise, no kill
        try:
            return _allocate_shared(nbytes)
        except (OSError, ValueError, OverflowError) as e:  # a limit of file sizes, no more descriptors, a sandbox
            log.debug("no shared memory of %d bytes for a snapshot: %s", nbytes, e)
    return Buffer(allocate(nbytes, pinned=pinned))


def _allocate_shared(nbytes: int) -> Buffer:
    tag = secrets.token_hex(16)
    fd = os.memfd_create(_file_name(tag), os.MFD_CLOEXEC)
    try:
        os.fchmod(fd, 0o400)  # readers can't open it for writing
        os.ftruncate(fd, nbytes)
        data = torch.frombuffer(mmap.mmap(fd, nbytes), dtype=torch.uint8)  # it keeps the mapping, and that the memory
        buffer = Buffer(data, f"{os.getpid()}/{fd}/{tag}")
    except BaseException:
        os.close(fd)
        raise
    weakref.finalize(buffer, os.close, fd)
    return buffer


def _file_name(tag: str) -> str:
    return f"torchft_x-{tag}"


def held_file_name(tag: str) -> str:
    """Return the name of memory that supervisors hold for workers. A snapshot in it is called PID/FD/TAG/FIRST BYTE."""
    return f"torchft_x-held-{tag}"


def open_memfd(pid: str, fd: str, name: str, mode: int) -> int | None:
    """Open the memfd `name` that process `pid` holds as its `fd`, and return a descriptor of it.

    Returns None if it doesn't exist, or if this process may not open it with `mode` (os.O_RDONLY or os.O_RDWR). Never
    opens a file of another name.
    """
    path, target = f"/proc/{pid}/fd/{fd}", f"/memfd:{name} (deleted)"
    try:
        if os.readlink(path) != target:
            return None
        found = os.open(path, mode | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as e:  # another host or container, another user
        log.debug("no shared memory %s: %s", path, e)
        return None
    try:
        if os.readlink(f"/proc/self/fd/{found}") == target:
            return found
    except OSError as e:
        log.debug("shared memory %s: %s", path, e)
    os.close(found)
    return None


class SharedFile:
    """Another process's buffer, open for reading. Its data are valid only while that process leaves it unchanged."""

    def __init__(self, fd: int, first: int = 0) -> None:
        self._fd = fd
        self._first = first  # offset of the buffer in the file, bytes

    @staticmethod
    def open(name: str, nbytes: int) -> SharedFile | None:
        """Open the buffer that another process calls `name`, of at least `nbytes`.

        Returns None if this process can read no such buffer on this host. Never opens anything but a buffer of a
        snapshot.
        """
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        held, first = match[4] is not None, int(match[4] or 0)
        file = held_file_name(match[3]) if held else _file_name(match[3])
        fd = open_memfd(match[1], match[2], file, os.O_RDONLY)
        if fd is None:
            return None
        if os.fstat(fd).st_size >= first + nbytes:
            return SharedFile(fd, first)
        os.close(fd)
        return None

    def read(self, memory: memoryview, start: int) -> None:
        """Fill `memory` with the bytes from `start` on. Raises OSError."""
        done = 0
        while done < len(memory):
            n = os.preadv(self._fd, [memory[done:]], self._first + start + done)
            if n == 0:
                raise OSError("the shared memory is shorter than it was")
            done += n

    def close(self) -> None:
        os.close(self._fd)
