"""launch/chaos/schedule: which faults, when, and whom they hit."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from torchft_x.errors import ConfigError
from torchft_x.launch.chaos.runner import describe
from torchft_x.launch.chaos.schedule import Target, listed, poisson
from torchft_x.timing import TIMING

LIVING = [
    Target("lighthouse", "", 0, 1),
    *(Target("supervisor", str(g), 0, 10 + g) for g in range(3)),
    *(Target("worker", str(g), r, 20 + 2 * g + r) for g in range(3) for r in range(2)),
]


def test_the_same_seed_makes_the_same_faults() -> None:
    one, two = (list(poisson(5.0, 50, ["kill", "stop"], seed=7)) for _ in range(2))
    assert one == two
    assert one != list(poisson(5.0, 50, ["kill", "stop"], seed=8))
    assert [p.choose(LIVING) for p in one] == [p.choose(LIVING[::-1]) for p in two]


def test_gaps_by_chance_about_the_mean() -> None:
    plan = list(poisson(5.0, 2000, ["kill", "stop", "lighthouse"], seed=1))
    assert plan[-1].at / len(plan) == pytest.approx(5.0, rel=0.1)
    assert set(Counter(p.kind for p in plan)) == {"kill", "stop", "lighthouse"}
    assert {t.pid for p in plan if p.kind == "kill" and (t := p.choose(LIVING))} == {20, 21, 22, 23, 24, 25}
    assert all(2 <= p.seconds / TIMING.silence_stopped <= 4 for p in plan)


def test_without_a_count_there_is_no_last_one() -> None:
    assert len(list(islice(poisson(1.0, None, ["kill"], seed=0), 10_000))) == 10_000


def test_a_list() -> None:
    plan = listed("20:lighthouse, 10:kill:1,30:stop:0:4.5,5:supervisor", seed=0)
    assert [(p.at, p.kind, p.group) for p in plan] == [
        (5.0, "supervisor", None),
        (10.0, "kill", "1"),
        (20.0, "lighthouse", None),
        (30.0, "stop", "0"),
    ]
    assert plan[3].seconds == 4.5
    struck = [p.choose(LIVING) for p in plan]
    assert [t and (t.role, t.group) for t in struck[1:]] == [("worker", "1"), ("lighthouse", ""), ("worker", "0")]
    assert struck[0].role == "supervisor"


def test_nobody_is_struck_who_is_not_there() -> None:
    (planned,) = listed("1:kill:7", seed=0)
    assert planned.choose(LIVING) is None
    assert planned.choose([]) is None
    assert list(describe([planned], LIVING)) == ["1: after 1.0 s kill: nobody: none lives now"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("10", "'10' is not SECONDS:KIND"),
        ("10:kill:1:2:3", "is not SECONDS:KIND"),
        ("10:explode", "no kind of fault 'explode'; the kinds are kill, stop, hang, drain, supervisor, lighthouse"),
        ("x:kill", "'x' is no number of seconds"),
        ("nan:kill", "'nan' is no number of seconds"),
        ("1:stop:0:inf", "'inf' is no number of seconds"),
    ],
)
def test_mistakes_in_a_list(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        listed(text, 0)


@pytest.mark.parametrize(
    ("mean", "count", "kind"), [(0.0, 1, "kill"), (float("nan"), 1, "kill"), (1.0, 0, "kill"), (1.0, 1, "x")]
)
def test_mistakes_in_a_poisson_schedule(mean: float, count: int, kind: str) -> None:
    with pytest.raises(ConfigError):
        poisson(mean, count, [kind], 0)


def test_a_hang_has_no_end_unless_it_is_given() -> None:
    endless, short = listed("1:hang:0,2:hang:0:4", seed=1)
    assert (endless.seconds, short.seconds) == (None, 4.0)
    assert {p.seconds for p in poisson(1.0, 20, ["hang"], 3)} == {None}
    assert all(p.seconds is not None for p in poisson(1.0, 20, ["stop"], 3))
