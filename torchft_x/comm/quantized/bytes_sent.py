"""How many bytes of reductions this rank has sent to other members."""

from __future__ import annotations

import threading


class BytesSent:
    """Payload given to the process group for other members: without headers, and nothing for a group of one.

    Exact for quantised reductions; for others what a ring all-reduce sends (`ring_bytes`), which is the least that any does.
    Attempts that failed count as well. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = 0
        self._taken = 0  # as much of it `take` has told

    def add(self, nbytes: int) -> None:
        with self._lock:
            self._total += nbytes

    @property
    def total(self) -> int:
        return self._total

    def take(self) -> int:
        """Since the last call."""
        with self._lock:
            new, self._taken = self._total - self._taken, self._total
            return new


def ring_bytes(nbytes: int, members: int) -> int:
    """What each member of a ring all-reduce of a tensor of `nbytes` sends."""
    return 2 * (members - 1) * nbytes // members
