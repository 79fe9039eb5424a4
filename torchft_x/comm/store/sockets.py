"""Find the process's own sockets and shut them down, which is the only way to end a running gloo collective.

gloo's ``abort()`` does nothing to running operations: a wait ends when a connection breaks or at the timeout. So we
break the connections ourselves, by ``shutdown(SHUT_RDWR)`` on each. Every wait then raises within milliseconds, even
if the peer is stopped and will never answer.

The difficulty is *which* sockets, because a process may hold several groups (threads as replicas in tests) and both
ends of one connection. Addresses don't decide it: two groups may connect to the same listening port. But each gloo
device has an event loop, an epoll instance in which exactly the sockets of that device are registered. Linux lists
them in ``/proc/self/fdinfo/<epoll>`` with their inodes. A device belongs to one process group object at a time
(`torchft_x.comm.gloo.device`), so the device's list *is* the group's list.

A descriptor may be closed and its number reused at any moment. So each is duplicated first and compared
(`torchft_x.descriptors.duplicates`): we shut down a listed socket, or nothing.

Where the lists don't exist (other systems, some sandboxes) every function here finds nothing, and a collective ends
at its own timeout.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

from torchft_x.descriptors import duplicates, registered


def listener_inode(epoll: int) -> int | None:
    """Return the inode of the one listening socket that `epoll` watches, or None if there is none or more than one."""
    found = [inode for _, inode, sock in duplicates(registered(epoll)) if _is_listening(sock)]
    return found[0] if len(found) == 1 else None


def local_addresses(epoll: int) -> list[str]:
    """Return ``ip:port`` of our end of each watched socket."""
    return [_text(sock.getsockname()) for _, _, sock in duplicates(registered(epoll))]


def remote_addresses(epoll: int) -> list[str]:
    """Return ``ip:port`` of the other end of each watched connection."""
    names = [_remote(sock) for _, _, sock in duplicates(registered(epoll))]
    return [_text(name) for name in names if name is not None]


def shut_watched(epoll: int, listener: int) -> int:
    """Shut down every connection that the epoll instance watches, except its listening socket; return their number.

    Does nothing unless the socket with inode `listener` is still watched: otherwise `epoll` has become another
    descriptor.
    """
    watched = registered(epoll)
    if listener not in (inode for _, inode in watched):
        return 0
    return _shut(sock for _, inode, sock in duplicates(watched) if inode != listener)


def _shut(socks: Iterable[socket.socket]) -> int:
    count = 0
    for sock in socks:
        try:
            sock.shutdown(socket.SHUT_RDWR)
            count += 1
        except OSError:
            pass  # not connected, or already shut
    return count


def _is_listening(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _remote(sock: socket.socket) -> object:
    """Return the address of the other end, None if there is none."""
    try:
        return sock.getpeername()
    except OSError:
        return None


def _text(name: object) -> str:
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
