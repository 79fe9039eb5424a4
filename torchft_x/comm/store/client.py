"""A meeting store as torch accepts it as a store: its C++ calls these methods."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from torchft_x.comm.store import wire
from torchft_x.comm.store.connection import Connection, TorchConnection
from torchft_x.timing import TIMING


class MeetingStore(dist.Store):
    """A connection's keys below a prefix, as a torch store. torch's C++ calls some methods by their C++ names.

    torch keeps only the C++ half of this object, so the caller must keep the object as long as a process group may
    use it.

    Methods raise `DistNetworkError` if the connection is lost, and `DistStoreError` for a key that doesn't come in
    time (both are RuntimeErrors).
    """

    def __init__(self, connection: Connection | TorchConnection, prefix: str = "") -> None:
        super().__init__()
        self._connection = connection
        self._prefix = f"{prefix}/" if prefix else ""
        self._ahead: dict[str, bytes] = {}  # values that the last `wait` brought: gloo gets each key right after it

    def under(self, prefix: str) -> MeetingStore:
        """Return the store of the keys below this prefix, on the same connection; this store if it is empty."""
        return MeetingStore(self._connection, self._prefix + prefix) if prefix else self

    def value_within(self, key: str, seconds: float) -> bytes | None:
        """Wait at most `seconds` for a key, and return its value; None if it did not come."""
        found = self._await(wire.GET, [key], seconds)
        return None if found is None else found[0]

    def set(self, key: str, value: Any) -> None:
        self._ahead = {}
        self._connection.send(wire.SET, [self._key(key), _bytes(value)])

    def append(self, key: str, value: Any) -> None:
        self._connection.send(wire.APPEND, [self._key(key), _bytes(value)])

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        ahead, self._ahead = self._ahead, {}
        if all(key in ahead for key in keys):
            return [ahead[key] for key in keys]
        return self._in_time(keys, self._await(wire.GET, keys, self._connection.timeout))

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        return True

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        seconds = self._connection.timeout if timeout is None else timeout.total_seconds()
        self._ahead = dict(zip(keys, self._in_time(keys, self._await(wire.GET, keys, seconds)), strict=True))

    def check(self, keys: Sequence[str]) -> bool:
        return self._ask(wire.CHECK, self._keys(keys)) != b""

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(wire.ADD, [self._key(key), str(amount).encode()]))

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        return self._ask(wire.COMPARE_SET, [self._key(key), _bytes(expected), _bytes(desired)])

    def delete_key(self, key: str) -> bool:
        return self._ask(wire.DELETE, [self._key(key)]) != b""

    def num_keys(self) -> int:
        """Return the number of keys of the whole store, as torch's stores do."""
        return int(self._ask(wire.COUNT, []))

    deleteKey = delete_key
    getNumKeys = num_keys

    def set_timeout(self, timeout: timedelta) -> None:
        self._connection.timeout = timeout.total_seconds()

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._connection.timeout)

    def clone(self) -> MeetingStore:
        return self  # calls are serialised anyway

    def _key(self, key: str) -> bytes:
        return (self._prefix + key).encode()

    def _keys(self, keys: Sequence[str]) -> list[bytes]:
        return [self._key(key) for key in keys]

    def _ask(self, number: int, fields: Sequence[bytes]) -> bytes:
        self._ahead = {}
        answer = self._connection.ask(number, fields)
        return answer[0] if answer else b""

    def _await(self, number: int, keys: Sequence[str], seconds: float) -> list[bytes] | None:
        millis = str(int(min(max(seconds, 0.001), 1e6) * 1000)).encode()
        return self._connection.ask(number, [millis, *self._keys(keys)], seconds + TIMING.late_store)

    def _in_time(self, keys: Sequence[str], found: list[bytes] | None) -> list[bytes]:
        if found is None:
            some = ", ".join(self._prefix + key for key in keys[:3])
            raise dist.DistStoreError(f"wait timeout: the store at {self._connection.where} has not got {some} in time")
        return found


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
