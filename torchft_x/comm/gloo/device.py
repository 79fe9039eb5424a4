"""gloo devices: a listening socket, an event loop and its thread, created once and kept until the process ends.

Destroying a device takes 10 ms *with* the interpreter lock held, so devices are never destroyed. A device is leased
to a process group object, goes back to the pool when that object is shut down, and serves the next one on the same
host. A process has as many devices as it ever had process group objects at the same time, which outside of tests is
one.

Shutting a device's sockets is the only way to end a running gloo collective. gloo's ``abort()`` does nothing to running
operations: a wait ends when a connection breaks or at the timeout. After ``shutdown(SHUT_RDWR)`` on each connection
every wait raises within milliseconds, even if the peer is stopped and will never answer.

The difficulty is *which* sockets, because a process may hold several groups (threads as replicas in tests) and both
ends of one connection. Addresses don't decide it: two groups may connect to the same listening port. But each device
has an event loop, an epoll instance in which exactly its sockets are registered. Linux lists them in
``/proc/self/fdinfo/<epoll>`` with their inodes. As a device has one lessee at a time, all of them belong to that lessee.

Where the lists don't exist (other systems, some sandboxes) no sockets are found, and a collective ends at its own
timeout.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Any

import torch.distributed as dist

from torchft_x.descriptors import duplicates, epolls, port_not_inherited, registered, shut
from torchft_x.env import ADVERTISE_HOST
from torchft_x.errors import AddressError, first_line

_ATTEMPTS = 3  # other threads may open event loops while we search for ours; that rarely happens twice

_lock = threading.Lock()  # guards the pool and serialises the creation of devices
_pool: dict[str, list[Device]] = {}
_inherited: list[Device] = []  # devices of a parent process; destroying them would hang: their threads don't exist here


class Device:
    """A gloo device, created by `lease`. `handle` goes into the options of gloo groups."""

    def __init__(self, handle: Any, host: str, epoll: int = -1, listener: int = 0) -> None:
        self.handle = handle  # torch's device object
        self.host = host  # the name or address on which the device listens, as given
        self._epoll = epoll  # descriptor of its event loop; -1 if it couldn't be identified
        self._listener = listener  # inode of its listening socket, which proves that `_epoll` still is that loop
        self._idle = len(registered(epoll))  # descriptors watched without connections
        self._pid = os.getpid()  # a forked child shares the connections and must not touch them

    @property
    def own(self) -> bool:
        """Whether this process created the device, rather than inherited it by a fork."""
        return self._pid == os.getpid()

    def _watched(self) -> list[tuple[int, int]]:
        """Return (descriptor, inode) of each socket of the device; none if they can't be listed, or are a parent's."""
        watched = registered(self._epoll) if self.own else []
        return watched if self._listener in (inode for _, inode in watched) else []

    def shut(self) -> None:
        """Shut down all connections of this device, including those not yet established, in under a millisecond."""
        for _, inode, sock in duplicates(self._watched()):
            if inode != self._listener:
                shut(sock)

    def addresses(self) -> list[str]:
        """Return ``ip:port`` of our end of each of the device's sockets, the listening one included."""
        return [_text(sock.getsockname()) for _, _, sock in duplicates(self._watched())]

    def connections(self) -> int | None:
        """Return the number of the device's connections, or None if they can't be listed."""
        watched = self._watched()
        return len(watched) - self._idle if watched else None

    def peers(self) -> list[str]:
        """Return ``ip:port`` of the other end of each of the device's connections."""
        found = []
        for _, _, sock in duplicates(self._watched()):
            with contextlib.suppress(OSError):  # it has no other end
                found.append(_text(sock.getpeername()))
        return found


def lease(host: str) -> Device:
    """Return a device that listens on `host`, an address or name of this machine. Return it with `give_back`.

    Raises `AddressError` if gloo can't listen on `host`.
    """
    with _lock:
        free = _pool.setdefault(host, [])
        while free:
            device = free.pop()
            if device.own:
                return device
            _inherited.append(device)
        return _create(host)


def give_back(device: Device) -> None:
    """End a lease. The lessee's torch group must have been released, or at least its connections shut."""
    with _lock:
        (_pool.setdefault(device.host, []) if device.own else _inherited).append(device)


def _create(host: str) -> Device:
    """Create a device and identify its event loop: the one new epoll instance that watches a single listening socket."""
    for attempt in range(_ATTEMPTS):
        before = epolls()
        try:
            handle = dist.ProcessGroupGloo.create_device(hostname=host)
        except (RuntimeError, ValueError) as e:
            raise AddressError(
                f"gloo can't listen on {host!r}: it is not an address of this machine. Set {ADVERTISE_HOST} "
                f"(or `host`) to the address others reach this machine by. ({first_line(e)})"
            ) from None
        loops = [(epoll, inode) for epoll in epolls() - before if (inode := listener_inode(epoll)) is not None]
        if len(loops) == 1:
            device = Device(handle, host, *loops[0])
            for address in device.addresses():
                port_not_inherited(int(address.rpartition(":")[2]))
            return device
        if not loops and not before and attempt == 0 and not epolls():
            break  # this system lists no event loops at all
    return Device(handle, host)


def listener_inode(epoll: int) -> int | None:
    """Return the inode of the one listening socket that `epoll` watches, or None if there is none or more than one."""
    found = [inode for _, inode, sock in duplicates(registered(epoll)) if _is_listening(sock)]
    return found[0] if len(found) == 1 else None


def _is_listening(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _text(name: Any) -> str:
    return f"{name[0]}:{name[1]}"


def _after_fork_in_child() -> None:
    """Replace the lock: another thread of the parent may have held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
