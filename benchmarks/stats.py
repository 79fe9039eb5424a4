"""Medians and their 95 % intervals, ratios by pairs, and verdicts on goals, as pure functions.

A sample is a number, or None for "never" (the trainer died, the bound ran out), which counts as infinitely much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Sample = float | None

FEWEST = 6
"""Fewest samples whose order statistics give a 95 % interval of the median. With fewer, the marked range is shown."""


@dataclass(frozen=True)
class Summary:
    """Median of `n` samples with its 95 % interval; the plain range if there are fewer than `FEWEST`."""

    median: float
    low: float
    high: float
    n: int

    @property
    def few(self) -> bool:
        return self.n < FEWEST


def summarize(samples: Sequence[Sample]) -> Summary | None:
    """Return the summary, or None if there is no sample. The interval assumes nothing about the distribution."""
    values = sorted(math.inf if x is None else x for x in samples)
    if not values:
        return None
    skip = _skip(len(values))
    return Summary(_median(values), values[skip], values[-1 - skip], len(values))


def _median(values: Sequence[float]) -> float:
    """Return the median of sorted values."""
    middle = len(values) // 2
    if len(values) % 2:
        return values[middle]
    return (values[middle - 1] + values[middle]) / 2


def _skip(n: int) -> int:
    """Return the number of samples at each end that lie outside of the interval: the most with P(outside) <= 5 %."""
    below, skip = 0.0, -1
    for k in range(n // 2 + 1):
        below += math.comb(n, k) * 0.5**n  # the median is below the (k + 1)-th smallest with this probability
        if 2 * below > 0.05:
            break
        skip = k
    return max(0, skip)


def ratios(ours: Sequence[Sample], other: Sequence[Sample]) -> list[float]:
    """Return ours/other pair by pair, up to the shorter sequence.

    Pairs in which both are "never", or the other is zero or less, are left out.
    """
    out = []
    for a, b in zip(ours, other, strict=False):
        if (a is None and b is None) or (b is not None and b <= 0):
            continue
        out.append(math.inf if a is None else 0.0 if b is None else a / b)
    return out


@dataclass(frozen=True)
class Goal:
    """Goal of a measurement, which is met if the 95 % interval reaches `limit`."""

    limit: float
    of: str = "ours"
    """Compared value. ``ours``: the median; ``peer/ours``, ``ours/peer`` and ``ours/limit``: the median of that ratio;
    ``total``: the sum of all samples; ``share``: `share` of the samples must be within `limit`."""
    at_most: bool = True
    """Whether `limit` is an upper bound; False: a lower one."""
    share: float = 0.99
    needs: int = 0
    """Fewest samples for a verdict."""


@dataclass(frozen=True)
class Verdict:
    """Result of comparing a measurement with its goal."""

    word: str
    """``met``, ``not met``, ``undecided``, ``not measured``, or ``-`` where there is no goal."""
    why: str = ""
    value: Summary | None = None
    """Summary of the values compared with the limit, where their median is compared."""


def judge(
    goal: Goal | None, ours: Sequence[Sample], peer: Sequence[Sample], limit: Sequence[Sample], why_not: str = ""
) -> Verdict:
    """Compare the samples with the goal. `why_not` is the reason why there are no samples, if there are none."""
    if goal is None:
        return Verdict("-", why_not)
    if not ours:
        return Verdict("not measured", why_not or "no sample")
    if len(ours) < goal.needs and not _failed_already(goal, ours):
        return Verdict("not measured", f"{len(ours)} of the {goal.needs} samples it takes")
    if goal.of == "total":
        total = sum(math.inf if x is None else x for x in ours)
        return Verdict("met" if total <= goal.limit else "not met", f"{total:g} in {len(ours)}")
    if goal.of == "share":
        within = sum(x is not None and x <= goal.limit for x in ours)
        word = "met" if within >= goal.share * len(ours) else "not met"
        return Verdict(word, f"{within} of {len(ours)}")
    values: Sequence[Sample] = ours
    if goal.of == "peer/ours":
        values = ratios(peer, ours)
    elif goal.of == "ours/peer":
        values = ratios(ours, peer)
    elif goal.of == "ours/limit":
        values = ratios(ours, limit)
    summary = summarize(values)
    if summary is None:
        return Verdict("not measured", why_not or "nothing to compare with")
    sign = 1.0 if goal.at_most else -1.0
    best = summary.low if goal.at_most else summary.high
    word = "met" if sign * best <= sign * goal.limit else "not met"
    if summary.few and word == "met" and sign * summary.median > sign * goal.limit:
        word = "undecided"  # the range of few samples may reach the limit by chance
    return Verdict(word, f"range of {summary.n}" if summary.few else "", summary)


def _failed_already(goal: Goal, ours: Sequence[Sample]) -> bool:
    """Return whether the goal is missed however many samples follow."""
    if goal.of == "total":
        return sum(math.inf if x is None else x for x in ours) > goal.limit
    if goal.of == "share":
        outside = sum(x is None or x > goal.limit for x in ours)
        return outside > (1 - goal.share) * goal.needs
    return False
