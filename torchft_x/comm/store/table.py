"""A meeting store's keys and values, within limits, and the operations on them. Has no sockets and no clock."""

from __future__ import annotations

from collections.abc import Iterator

MAX_KEYS = 1 << 17
"""Keys in a store: some per member, rank and configuration. Those of many ended configurations may be among them."""
MAX_BYTES = 1 << 26
"""Bytes of keys and values together."""


class Table:
    """Keys and values, within limits: those that were written longest ago make room. Bad numbers raise ValueError."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._values)

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def set(self, key: bytes, value: bytes) -> None:
        self.delete(key)
        self._bytes += len(key) + len(value)
        self._values[key] = value
        while self._bytes > MAX_BYTES or len(self._values) > MAX_KEYS:
            self.delete(next(iter(self._values)))

    def append(self, key: bytes, value: bytes) -> None:
        self.set(key, self._values.get(key, b"") + value)

    def compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        """Set a key if it has the value `expected`. Return its value afterwards, as torch's stores do.

        If the key doesn't exist, it is set only if `expected` is empty; otherwise `expected` is returned.
        """
        old = self._values.get(key)
        if old == expected or (old is None and not expected):
            self.set(key, desired)
            return desired
        return expected if old is None else old

    def add(self, key: bytes, amount: bytes) -> bytes:
        """Add decimal numbers, as torch's stores do, and return the total."""
        total = str(int(self._values.get(key, b"0")[:32]) + int(amount[:32])).encode()
        self.set(key, total)
        return total

    def delete(self, key: bytes) -> bool:
        old = self._values.pop(key, None)
        if old is not None:
            self._bytes -= len(key) + len(old)
        return old is not None

    def delete_below(self, prefix: bytes) -> None:
        for key in [k for k in self._values if k.startswith(prefix)]:
            self.delete(key)
