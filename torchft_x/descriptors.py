"""Registry of sockets that forked children release. All code of this library that opens a connection uses it.

A child that is forked without exec (a worker of a DataLoader) holds every descriptor of its parent. While it lives, a
connection that the parent closed stays open, a listening port accepts, and a peer waits. Each socket of this library
is therefore registered here, and a forked child releases all of them at once.

Sockets that other libraries opened for us are found by their event loop: Linux lists the descriptors that an epoll instance
watches in ``/proc/self/fdinfo/<epoll>``. On systems without these lists, such sockets are not found. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import weakref
from collections.abc import Iterable, Iterator
from typing import TypeVar

_WATCHED = re.compile(r"^tfd:\s*(\d+)\s.*\bino:([0-9a-f]+)", re.MULTILINE)


T = TypeVar("T", bound=socket.socket)

_held: weakref.WeakSet[socket.socket] = weakref.WeakSet()  # released in a forked child while they are open
_ports: set[int] = set()  # ports of sockets that other libraries opened for us


def not_inherited(opened: T) -> T:
    """Register `opened` to be released in forked children, and return it."""
    _held.add(opened)
    return opened


def port_not_inherited(port: int) -> None:
    """Release in forked children all sockets of event loops (gRPC, gloo, torch) that serve or connect to this port."""
    _ports.add(port)


def shut(sock: socket.socket) -> None:
    """Shut a connection down, also one that is being made, and wake all threads that read, write or accept on it."""
    with contextlib.suppress(OSError):  # never connected, or closed
        sock.shutdown(socket.SHUT_RDWR)


def close(sock: socket.socket) -> None:
    """Shut a connection down and close it. The peer reads the end even if another process holds the descriptor."""
    shut(sock)
    sock.close()


def open_descriptors() -> Iterator[tuple[int, str]]:
    """Yield each descriptor of this process with its target, in the format of ``/proc/self/fd``."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):  # closed since it was listed
            yield int(name), os.readlink(f"/proc/self/fd/{name}")


def epolls() -> frozenset[int]:
    """Return the descriptors of this process's epoll instances."""
    return frozenset(fd for fd, target in open_descriptors() if target == "anon_inode:[eventpoll]")


def registered(epoll: int) -> list[tuple[int, int]]:
    """Return (descriptor, inode) for each file that an epoll instance watches, or nothing if they can't be listed."""
    try:
        with open(f"/proc/self/fdinfo/{epoll}", encoding="ascii") as f:
            return [(int(fd), int(inode, 16)) for fd, inode in _WATCHED.findall(f.read())]
    except OSError:
        return []


def duplicates(entries: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, socket.socket]]:
    """Yield (descriptor, inode, socket object on a duplicate) for each entry that is still the listed socket.

    A descriptor may be closed and its number reused at any moment, which the duplicate's inode reveals. The duplicate is
    closed when the iteration goes on.
    """
    for fd, inode in entries:
        try:
            copy = os.dup(fd)
        except OSError:
            continue
        try:
            status = os.fstat(copy)
            if status.st_ino == inode and stat.S_ISSOCK(status.st_mode):
                with socket.socket(fileno=copy) as sock:
                    copy = -1
                    yield fd, inode, sock
        except OSError:  # a kind of socket that Python doesn't know
            pass
        finally:
            if copy >= 0:
                os.close(copy)


def _of_other_libraries() -> Iterator[int]:
    for epoll in epolls():
        # The parent shares the instance and may have added descriptors since the fork; those are not ours.
        watched = [(fd, _ports_of(sock)) for fd, _, sock in duplicates(registered(epoll))]
        if any(_ports & ports for _, ports in watched):
            yield from (fd for fd, _ in watched)


def _ports_of(sock: socket.socket) -> set[int]:
    """Return the ports of both ends of an internet socket, or none for other sockets."""
    found: set[int] = set()
    for end in (sock.getsockname, sock.getpeername):
        with contextlib.suppress(OSError):
            name = end()
            if isinstance(name, tuple) and len(name) > 1:
                found.add(name[1])
    return found


def _release_in_child() -> None:
    """Replace each socket by /dev/null. Its number stays in use, so that code that still has it reaches no other file."""
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
