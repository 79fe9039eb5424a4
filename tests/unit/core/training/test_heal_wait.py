"""How long a heal is waited for: while it moves."""

from __future__ import annotations

from torchft_x.core.training.heal_wait import HealWait


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
