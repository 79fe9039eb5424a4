"""gloo devices: a listening socket, an event loop and its thread, created once and kept until the process ends.

Destroying a device takes 10 ms *with* the interpreter lock held, so devices are never destroyed. A device is leased
to a process group object, goes back to the pool when that object is shut down, and serves the next one on the same
host. A process has as many devices as it ever had process group objects at the same time, which outside of tests is
one.

Since a device has one lessee at a time, all its connections belong to that lessee, and an abort shuts exactly those
(`torchft_x.comm.store.sockets`).
"""

from __future__ import annotations

import os
import threading
from typing import Any

import torch.distributed as dist

from torchft_x.comm.store import sockets
from torchft_x.descriptors import epolls, port_not_inherited, registered
from torchft_x.env import ADVERTISE_HOST
from torchft_x.errors import AddressError, first_line

_ATTEMPTS = 3  # other threads may open event loops while we search for ours; that rarely happens twice

_lock = threading.Lock()  # guards the pool and serialises the creation of devices
_pool: dict[str, list[Device]] = {}
_inherited: list[Device] = []  # devices of a parent process; destroying them would hang: their threads don't exist here


class Device:
    """A gloo device, created by `lease`. `handle` goes into the options of gloo groups."""

    def __init__(self, handle: Any, host: str, epoll: int | None, listener: int | None) -> None:
        self.handle = handle  # torch's device object
        self.host = host  # the name or address on which the device listens, as given
        self._epoll = epoll  # descriptor of its event loop; None if it couldn't be identified
        self._listener = listener  # inode of its listening socket, which proves that `_epoll` still is that loop
        self._idle = 0 if epoll is None else len(registered(epoll))  # descriptors watched without connections
        self._pid = os.getpid()  # a forked child shares the connections and must not touch them

    def __repr__(self) -> str:
        return f"Device(host={self.host!r}, abortable={self.abortable})"

    @property
    def own(self) -> bool:
        """Whether this process created the device, rather than inherited it by a fork."""
        return self._pid == os.getpid()

    @property
    def abortable(self) -> bool:
        """Whether the device's connections can be shut down. If not, collectives end only at their own timeout."""
        return self._epoll is not None and self._listener is not None and self.own

    def shut(self) -> int:
        """Shut down all connections of this device, including those not yet established, and return their number.

        Takes under a millisecond.
        """
        if self._epoll is None or self._listener is None or not self.own:
            return 0
        return sockets.shut_watched(self._epoll, self._listener)

    def addresses(self) -> list[str]:
        """Return ``ip:port`` of our end of each of the device's sockets, the listening one included."""
        return [] if self._epoll is None or not self.own else sockets.local_addresses(self._epoll)

    def connections(self) -> int | None:
        """Return the number of the device's connections, or None if they can't be listed."""
        if self._epoll is None or self._listener is None or not self.own:
            return None
        watched = registered(self._epoll)
        return len(watched) - self._idle if self._listener in (inode for _, inode in watched) else None

    def peers(self) -> list[str]:
        """Return ``ip:port`` of the other end of each of the device's connections."""
        return [] if self._epoll is None or not self.own else sockets.remote_addresses(self._epoll)


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
        loops = [(epoll, sockets.listener_inode(epoll)) for epoll in epolls() - before]
        loops = [(epoll, inode) for epoll, inode in loops if inode is not None]
        if len(loops) == 1:
            device = Device(handle, host, *loops[0])
            for address in device.addresses():
                port_not_inherited(int(address.rpartition(":")[2]))
            return device
        if not loops and not before and attempt == 0 and not epolls():
            break  # this system lists no event loops at all
    return Device(handle, host, None, None)


def _after_fork_in_child() -> None:
    """Replace the lock: another thread of the parent may have held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
