"""Intervals, ratios and verdicts, against values worked out by hand and against repeated drawing."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks.stats import FEWEST, Goal, judge, ratios, summarize


def test_the_median_and_its_interval_are_order_statistics() -> None:
    # n = 30: the 10th smallest and the 10th largest (P(fewer than 10 of 30 below the median) = 2.1 %)
    s = summarize([float(x) for x in range(30, 0, -1)])
    assert (s.median, s.low, s.high, s.n, s.few) == (15.5, 10.0, 21.0, 30, False)


@pytest.mark.parametrize(("limit", "word"), [(2.5, "met"), (1.5, "undecided"), (0.5, "not met")])
def test_a_range_of_few_samples_decides_less_than_an_interval(limit: float, word: str) -> None:
    few = [1.0, 2.0, 3.0]
    assert judge(Goal(limit), few, [], []).word == word
    assert judge(Goal(-limit, at_most=False), [-x for x in few], [], []).word == word
    assert judge(Goal(limit), few * 10, [], []).word == ("met" if limit > 1.0 else "not met")


def test_few_samples_show_their_range_and_say_so() -> None:
    s = summarize([3.0, 1.0, 2.0])
    assert (s.median, s.low, s.high, s.few) == (2.0, 1.0, 3.0, True)
    six = summarize([float(x) for x in range(FEWEST)])
    assert not six.few
    assert summarize([]) is None


@pytest.mark.parametrize("n", [6, 10, 30, 31, 100])
def test_the_interval_covers_the_true_median_in_95_of_100(n: int) -> None:
    rng, covered = random.Random(n), 0
    for _ in range(1000):
        s = summarize([rng.expovariate(1.0) for _ in range(n)])
        covered += s.low <= math.log(2) <= s.high
    assert covered >= 935  # at least 95 % by construction; two standard deviations of the drawing are 1.4 %


def test_never_is_the_largest_of_all() -> None:
    s = summarize([1.0, None, 2.0])
    assert (s.median, s.high) == (2.0, math.inf)


def test_ratios_are_of_pairs() -> None:
    assert ratios([1.0, 4.0, 9.0], [2.0, 2.0]) == [0.5, 2.0]
    assert ratios([1.0, None, None], [None, 2.0, None]) == [0.0, math.inf]
    assert ratios([1.0, 1.0], [0.0, -1.0]) == []  # nothing to divide by


MANY = [float(x) for x in range(1, 31)]  # median 15.5, interval 10 to 21
TWICE = [2 * x for x in MANY]
SHARE = Goal(0.25, of="share", needs=100)
TOTAL = Goal(0, of="total", needs=100)


@pytest.mark.parametrize(
    ("goal", "ours", "peer", "limit", "word"),
    [
        (Goal(10.0), MANY, [], [], "met"),  # the interval reaches it
        (Goal(9.9), MANY, [], [], "not met"),
        (Goal(21.0, at_most=False), MANY, [], [], "met"),
        (Goal(21.1, at_most=False), MANY, [], [], "not met"),
        (None, MANY, [], [], "-"),
        (Goal(2.0, of="peer/ours", at_most=False), MANY, TWICE, [], "met"),
        (Goal(2.1, of="peer/ours", at_most=False), MANY, TWICE, [], "not met"),
        (Goal(0.5, of="ours/limit"), MANY, [], TWICE, "met"),
        (Goal(0.4, of="ours/limit"), MANY, [], TWICE, "not met"),
        (Goal(2.0, of="peer/ours"), MANY, [], [], "not measured"),
        (SHARE, [0.1] * 99 + [9.0], [], [], "met"),
        (SHARE, [0.1] * 98 + [9.0, None], [], [], "not met"),
        (SHARE, [0.1] * 30, [], [], "not measured"),
        (SHARE, [0.1, 9.0], [], [], "not measured"),  # 98 good ones would still do
        (SHARE, [0.1, 9.0, 9.0], [], [], "not met"),
        (TOTAL, [0] * 100, [], [], "met"),
        (TOTAL, [0] * 99, [], [], "not measured"),
        (TOTAL, [0, 1], [], [], "not met"),
    ],
)
def test_whether_a_goal_is_met(
    goal: Goal | None, ours: list[float | None], peer: list[float], limit: list[float], word: str
) -> None:
    assert judge(goal, ours, peer, limit).word == word


def test_what_was_not_measured_says_why() -> None:
    verdict = judge(Goal(1.0), [], [1.0], [], "the job did not come up")
    assert (verdict.word, verdict.why) == ("not measured", "the job did not come up")
