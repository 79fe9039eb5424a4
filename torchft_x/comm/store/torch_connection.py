"""Connection to torch's own store, a TCPStore, which serves everybody and which users and torchft bring."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist

from torchft_x.comm.store import wire
from torchft_x.comm.store.client import connect_socket
from torchft_x.descriptors import close
from torchft_x.errors import UnreachableError, first_line
from torchft_x.net import Address

_POLL = 0.002  # seconds between two requests for keys that are awaited


class TorchConnection:
    """Replacement for a `Connection` if the store is torch's. Its methods are those of `Connection`.

    Keys are asked for again and again instead of awaited: a waiting call of torch's client blocks every other caller
    of it, and no other thread could end it. A host that is stopped blocks a call until it goes on or is gone.

    torch's connect takes 6 s to detect a closed port, so a plain socket tries first. Both sides then look up the
    other's host name by its address: 5 s if the name server is slow, in which the store serves nobody.
    """

    def __init__(self, address: Address, timeout: float, seen: Callable[..., None]) -> None:
        self.where = address.target
        self.timeout = timeout  # seconds that a call may take
        self._is_shut = False  # set for good by `shut`
        deadline = time.monotonic() + timeout
        close(connect_socket(address, deadline, seen))
        limit = timedelta(seconds=max(deadline - time.monotonic(), 0.001))
        try:
            self._tcp = dist.TCPStore(*address, None, False, timeout=limit, wait_for_workers=False)
        except (RuntimeError, ValueError) as e:
            raise UnreachableError(f"The store at {self.where} did not answer: {first_line(e)}") from None

    @property
    def is_open(self) -> bool:
        try:
            self._tcp.check(["torchft_x"])  # a round trip, about 50 us; the key doesn't matter
        except RuntimeError:
            return False
        return not self._is_shut

    def shut(self) -> None:
        self._is_shut = True

    def send(self, number: int, fields: Sequence[bytes]) -> None:
        self.ask(number, fields)

    def ask(self, number: int, fields: Sequence[bytes], seconds: float | None = None) -> list[bytes] | None:
        self._check_open()
        if number == wire.GET:
            return self._await([key.decode() for key in fields[1:]], int(fields[0]) / 1000)
        if number == wire.COUNT:
            return [str(self._tcp.num_keys()).encode()]
        key, values = fields[0].decode(), fields[1:]
        if number == wire.SET:
            self._tcp.set(key, values[0])
        elif number == wire.APPEND:
            self._tcp.append(key, values[0])
        elif number == wire.COMPARE_SET:
            return [self._tcp.compare_set(key, *values)]
        elif number == wire.ADD:
            return [str(self._tcp.add(key, int(values[0]))).encode()]
        elif number == wire.CHECK:
            return [b"1" if self._tcp.check([key.decode() for key in fields]) else b""]
        else:  # DELETE, DROP
            deleted = [self._tcp.delete_key(key.decode()) for key in fields]
            return [b"1" if all(deleted) else b""]
        return None

    def _await(self, keys: list[str], seconds: float) -> list[bytes] | None:
        deadline = time.monotonic() + seconds
        while not self._tcp.check(keys):
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL)
            self._check_open()
        return [self._tcp.get(key) for key in keys]

    def _check_open(self) -> None:
        if self._is_shut:
            raise dist.DistNetworkError(f"The store at {self.where} is lost: it was shut")
