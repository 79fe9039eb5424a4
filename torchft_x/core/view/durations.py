"""How long something took, counted in buckets: a histogram as Prometheus reads it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Durations:
    """`bounds`: seconds, rising; what takes longer counts, too."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds  # upper ends, inclusive
        self.counts = [0] * (len(bounds) + 1)  # of each bucket by itself; the last has no end
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def add_all(self, counts: Sequence[int], seconds: float) -> None:
        """So many in each bucket, from the first on, and their sum. What lies beyond the last one counts there."""
        for i, count in enumerate(counts):
            self.counts[min(i, len(self.bounds))] += count
        self.sum += seconds

    @property
    def number(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Seconds; None: of nothing."""
        return self.sum / self.number if self.number else None

    def buckets(self) -> list[tuple[str, float]]:
        """Upper end as text, and how many took no longer; the last is `+Inf`."""
        total, out = 0, []
        for bound, count in zip((*map(str, map(float, self.bounds)), "+Inf"), self.counts, strict=True):
            total += count
            out.append((bound, float(total)))
        return out
