"""How long something took, counted in buckets: a histogram as Prometheus reads it."""

from __future__ import annotations

from bisect import bisect_left


class Durations:
    """`bounds`: seconds, rising; what takes longer counts, too."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds  # upper ends, inclusive
        self.counts = [0] * (len(bounds) + 1)  # of each bucket by itself; the last has no end
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Upper end as text, and how many took no longer; the last is `+Inf`."""
        total, out = 0, []
        for bound, count in zip((*map(str, map(float, self.bounds)), "+Inf"), self.counts, strict=True):
            total += count
            out.append((bound, float(total)))
        return out
