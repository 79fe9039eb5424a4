"""Sockets, and what a forked child keeps of them. Standard library only; used wherever this library opens a connection.

A child that was forked without a program of its own (a DataLoader's worker) holds every descriptor of its parent. While it lives
nobody sees the end of a connection that the parent has closed, or that ended with the parent: a port goes on taking connections,
a peer goes on waiting. So each socket of this library is registered here, and a forked child lets go of all of them at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import weakref
from collections.abc import Iterator
from typing import Protocol, TypeVar

_WATCHED = re.compile(r"^tfd:\s*(\d+)\s", re.MULTILINE)


class HasDescriptor(Protocol):
    """A socket, or what stands for one."""

    def fileno(self) -> int: ...


T = TypeVar("T", bound=HasDescriptor)

_held: weakref.WeakSet[HasDescriptor] = weakref.WeakSet()  # released in a forked child while they are open
_ports: set[int] = set()  # by which descriptors are found that other libraries opened for us


def not_inherited(opened: T) -> T:
    """Return `opened`, after registering it to be released in forked children."""
    _held.add(opened)
    return opened


def port_not_inherited(port: int) -> None:
    """Release in forked children what gRPC, gloo or torch have opened: all sockets of an event loop that serves this port, or that
    has a connection to it."""
    _ports.add(port)


def shut(sock: socket.socket) -> None:
    """End a connection, also one that is being made, and wake whoever reads, writes or accepts there. From any thread."""
    with contextlib.suppress(OSError):  # never connected, or closed
        sock.shutdown(socket.SHUT_RDWR)


def close(sock: socket.socket) -> None:
    """End a connection and close its descriptor. The other side reads the end even where another process holds it, too."""
    shut(sock)
    sock.close()


def _of_other_libraries() -> Iterator[int]:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":
                watched = _watched_by(int(name))
                if any(_ports & _ports_of(fd) for fd in watched):
                    yield from watched


def _watched_by(epoll: int) -> list[int]:
    """Descriptors that an epoll instance watches; none where the system doesn't list them."""
    try:
        with open(f"/proc/self/fdinfo/{epoll}", encoding="ascii") as f:
            return [int(fd) for fd in _WATCHED.findall(f.read())]
    except OSError:
        return []


def _ports_of(fd: int) -> set[int]:
    """Ports of both ends of an internet socket; none for anything else."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        sock = socket.socket(fileno=os.dup(fd))
        with sock:
            for end in (sock.getsockname, sock.getpeername):
                with contextlib.suppress(OSError):
                    name = end()
                    if isinstance(name, tuple) and len(name) > 1:
                        found.add(name[1])
    return found


def _release_in_child() -> None:
    """Put /dev/null in the place of each: the number stays taken, so that whoever still has it reaches no other file."""
    held = [opened.fileno() for opened in list(_held)]
    if _ports:
        with contextlib.suppress(OSError):
            held += _of_other_libraries()
    if not any(fd >= 0 for fd in held):
        return
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for fd in held:
            if fd >= 0:
                os.dup2(null, fd, inheritable=False)
        os.close(null)
    _held.clear()
    _ports.clear()


os.register_at_fork(after_in_child=_release_in_child)
