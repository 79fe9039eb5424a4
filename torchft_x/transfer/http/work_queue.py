"""Assignment of blocks to streams, by work stealing. Pure; times are in monotonic seconds.

Every stream holds one range of blocks. A stream without a range takes a free one, otherwise the later half of the
blocks not begun by the stream with the most left. So sources share the work as their links allow, however unequal
they are, and near the end no stream has more than a block or two to itself.

A block in flight belongs to one stream alone: two streams never write to the same memory. The block is free again
only when its stream has returned it.
"""

from __future__ import annotations

from dataclasses import dataclass

GRACE = 0.5  # seconds that a block may take in any case
SLOW = 4.0  # factor by which a block may take longer than one of an idle stream


@dataclass(slots=True)
class _Range:
    """Range of a stream. Its first block is in flight."""

    first: int
    end: int
    since: float  # when the stream began with `first`


@dataclass(slots=True)
class _Pace:
    blocks: int = 0
    seconds: float = 0.0

    def of_a_block(self) -> float:
        """Return the seconds per block; a guess if none has arrived yet."""
        return self.seconds / self.blocks if self.blocks else GRACE


class WorkQueue:
    """Work queue of one fetch of the blocks 0 to `blocks` - 1. Streams are identified by any numbers."""

    def __init__(self, blocks: int) -> None:
        self._free = [(0, blocks)] if blocks else []
        self._held: dict[int, _Range] = {}  # by stream
        self._pace: dict[int, _Pace] = {}  # by stream

    @property
    def over(self) -> bool:
        """Whether every block has arrived."""
        return not self._free and not self._held

    def take(self, stream: int, now: float, among: int = 1) -> tuple[int, int] | None:
        """Return a range ``(first, end)`` for `stream`, which holds none; None if there is nothing to take now.

        `among`: number of streams that are about to begin, this one included; a free range is shared by them.
        """
        if self._free:
            first, end = self._free.pop()
            middle = first + -(-(end - first) // among)
            if middle < end:
                self._free.append((middle, end))
            end = middle
        else:
            longest = max(self._held.values(), key=lambda held: held.end - held.first, default=None)
            if longest is None or longest.end - longest.first < 3:  # one is in flight, the next one soon
                return None
            end = longest.end
            first = longest.end = longest.first + 1 + (end - longest.first - 1) // 2
        self._held[stream] = _Range(first, end, now)
        return first, end

    def arrived(self, stream: int, now: float) -> bool:
        """Record the arrival of the first block of the stream's range. Return whether the next is the stream's, too."""
        held = self._held[stream]
        pace = self._pace.setdefault(stream, _Pace())
        pace.blocks, pace.seconds = pace.blocks + 1, pace.seconds + now - held.since
        held.first, held.since = held.first + 1, now
        if held.first < held.end:
            return True
        del self._held[stream]
        return False

    def give_back(self, stream: int) -> None:
        """Free the blocks of a stream that will not continue."""
        held = self._held.pop(stream, None)
        if held is not None:
            self._free.append((held.first, held.end))

    def overdue(self, idle: int, now: float) -> list[int]:
        """Return the streams whose block in flight has taken far longer than it would take the stream `idle`."""
        limit = max(GRACE, SLOW * self._pace.get(idle, _Pace()).of_a_block())
        return [stream for stream, held in self._held.items() if now - held.since > limit]
