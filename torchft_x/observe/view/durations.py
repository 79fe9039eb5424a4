"""Count durations in buckets, as a histogram for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Durations:
    """Histogram of durations. `bounds`: upper ends of the buckets in seconds, rising; a last bucket takes the rest."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds  # inclusive upper ends, seconds
        self.counts = [0] * (len(bounds) + 1)  # per bucket, not cumulative; the last bucket has no end
        self.sum = 0.0  # seconds

    def add(self, seconds: float | None) -> None:
        """Count a duration; None: it is unknown, and not counted."""
        if seconds is not None:
            self.counts[bisect_left(self.bounds, seconds)] += 1
            self.sum += seconds

    def add_all(self, counts: Sequence[int], seconds: float) -> None:
        """Add `counts`, one per bucket from the first on, and their sum in seconds. The rest counts in the last."""
        for i, count in enumerate(counts):
            self.counts[min(i, len(self.bounds))] += count
        self.sum += seconds

    @property
    def number(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Mean in seconds; None if nothing was counted."""
        return self.sum / self.number if self.number else None

    def buckets(self) -> list[tuple[str, float]]:
        """Return pairs of upper end, as text, and cumulative count. The last end is `+Inf`."""
        total, out = 0, []
        for bound, count in zip((*map(str, map(float, self.bounds)), "+Inf"), self.counts, strict=True):
            total += count
            out.append((bound, float(total)))
        return out
