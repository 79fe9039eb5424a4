"""Sockets that forked children release. Standard library only; used wherever this library opens a connection.

A child that is forked without exec (a worker of a DataLoader) holds every descriptor of its parent. While it lives, a
connection that the parent closed stays open, a listening port accepts, and a peer waits. Each socket of this library
is therefore registered here, and a forked child releases all of them at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import weakref
from collections.abc import Iterator
from typing import Protocol, TypeVar

_WATCHED = re.compile(r"^tfd:\s*(\d+)\s", re.MULTILINE)


class HasDescriptor(Protocol):
    """A socket or an object like it."""

    def fileno(self) -> int: ...


T = TypeVar("T", bound=HasDescriptor)

_held: weakref.WeakSet[HasDescriptor] = weakref.WeakSet()  # released in a forked child while they are open
_ports: set[int] = set()  # by which descriptors are found that other libraries opened for us


def not_inherited(opened: T) -> T:
    """Register `opened` to be released in forked children, and return it."""
    _held.add(opened)
    return opened


def port_not_inherited(port: int) -> None:
    """Release the sockets of gRPC, gloo or torch in forked children: all of an event loop that serves or connects to
    this port."""
    _ports.add(port)


def shut(sock: socket.socket) -> None:
    """Shut a connection down, also one that is being made, and wake all threads that read, write or accept on it."""
    with contextlib.suppress(OSError):  # never connected, or closed
        sock.shutdown(socket.SHUT_RDWR)


def close(sock: socket.socket) -> None:
    """Shut a connection down and close its descriptor. The peer reads the end also if another process holds the
    descriptor."""
    shut(sock)
    sock.close()


def _of_other_libraries() -> Iterator[int]:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":
                watched = _watched_by(int(name))
                if any(_ports & _ports_of(fd) for fd in watched):
                    # An epoll instance is shared with the parent, which may have added descriptors since the fork.
                    yield from filter(_is_socket, watched)


def _watched_by(epoll: int) -> list[int]:
    """Return the descriptors that an epoll instance watches; none if the system does not list them."""
    try:
        with open(f"/proc/self/fdinfo/{epoll}", encoding="ascii") as f:
            return [int(fd) for fd in _WATCHED.findall(f.read())]
    except OSError:
        return []


def _is_socket(fd: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


def _ports_of(fd: int) -> set[int]:
    """Return the ports of both ends of an internet socket; none for other descriptors."""
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
    """Replace each socket by /dev/null. The number stays in use, so that code which still holds it reaches no other
    file."""
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
