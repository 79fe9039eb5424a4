"""How long a heal is waited for: while it moves."""

from __future__ import annotations

import pytest

from torchft_x.core.training.heal_limits import LEAST, MOST, HealRetries, HealWait


def poll(copying: HealWait, now: float, signs: int, *, done: bool = False, waits_since: float | None = 0.0) -> float:
    return copying.poll(now, signs=signs, done=done, lateness=2.0, waits_since=waits_since)


def test_a_heal_that_moves_is_waited_for_however_long_it_takes() -> None:
    copying = HealWait(0.0)
    assert all(poll(copying, float(t), t) == 0.0 for t in range(1, 1000))


def test_one_that_stands_still_is_given_up_after_the_lateness() -> None:
    copying = HealWait(0.0)
    assert poll(copying, 10.0, 1) == 0.0
    assert poll(copying, 11.9, 1) == 0.0
    assert poll(copying, 12.0, 1) == 2.0


def test_one_that_never_begins_is_given_up_too() -> None:
    assert poll(HealWait(0.0), 2.5, 0) == 2.5


def test_who_does_not_wait_gives_nothing_up_and_its_wait_counts_from_its_beginning() -> None:
    copying = HealWait(0.0)
    assert poll(copying, 100.0, 0, waits_since=None) == 0.0
    assert poll(copying, 101.0, 0, waits_since=100.0) == 0.0
    assert poll(copying, 102.0, 0, waits_since=100.0) == 2.0


def test_when_all_is_sent_loading_may_take_as_long_as_copying() -> None:
    copying = HealWait(0.0)
    assert poll(copying, 30.0, 1) == 0.0
    assert poll(copying, 59.0, 1, done=True) == 0.0
    assert poll(copying, 60.0, 1, done=True) == 30.0
    quick = HealWait(0.0)
    poll(quick, 0.1, 1)
    assert poll(quick, 2.05, 1, done=True) == 0.0
    assert poll(quick, 2.2, 1, done=True) > 2.0


def test_each_heal_that_was_given_up_when_all_was_sent_doubles_what_the_next_one_gets_there() -> None:
    assert poll(HealWait(0.0, 2), 7.9, 0, done=True) == 0.0
    assert poll(HealWait(0.0, 2), 8.0, 0, done=True) == 8.0
    assert poll(HealWait(0.0, 2), 2.0, 0) == 2.0
    assert poll(HealWait(0.0, 10_000), 31.9, 0, done=True) == 0.0
    assert poll(HealWait(0.0, 10_000), 32.0, 0, done=True) == 32.0


def test_who_is_done_may_wait_for_others_that_copy_elsewhere() -> None:
    copying = HealWait(0.0, all_heals=False)
    assert poll(copying, 50.0, 0, done=True) == 0.0
    assert poll(copying, 50.0, 0) == 50.0


def tries(setbacks: HealRetries, times: list[float], sources: int = 1) -> list[bool]:
    return [bool(setbacks.failed(f"s{i % sources}", sources, "refused.", now)) for i, now in enumerate(times)]


def test_it_gives_up_when_several_heals_have_failed_for_long_enough() -> None:
    assert tries(HealRetries(60.0), [0.0, 1.0, 2.0, 59.9, 60.0]) == [False] * 4 + [True]


def test_slow_failures_must_be_several_too() -> None:
    assert tries(HealRetries(60.0), [100.0, 160.0, 220.0]) == [False, False, True]


@pytest.mark.parametrize(("sources", "needed"), [(1, LEAST), (LEAST + 2, LEAST + 2), (100, MOST)])
def test_every_source_is_tried_before(sources: int, needed: int) -> None:
    assert tries(HealRetries(1.0), [10.0 * i for i in range(needed)], sources) == [False] * (needed - 1) + [True]


def test_a_good_heal_ends_the_row() -> None:
    setbacks = HealRetries(1.0)
    tries(setbacks, [0.0, 5.0])
    setbacks.over()
    assert tries(setbacks, [6.0, 7.0, 8.0]) == [False, False, True]


def test_the_sentence_names_the_sources_the_last_reason_and_what_to_do() -> None:
    setbacks = HealRetries(1.0)
    for now, source in enumerate("aba"):
        sentence = setbacks.failed(f"{source}:1", 2, f"no route {now}.", 10.0 * now)
    assert sentence.startswith(
        "3 heals in a row have failed within 20 s, from a:1, b:1; the last: no route 2. This group"
    )
    assert "torchft_x doctor" in sentence
