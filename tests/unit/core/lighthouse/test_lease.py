"""Who may take the lease, and for how long it is held."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchft_x.core.lighthouse.lease import LeaseEntry, LeaseRule
from torchft_x.timing import TIMING

OTHER = LeaseEntry(3, 41, "other")


class Cell:
    """A register in memory."""

    def __init__(self, entry: LeaseEntry) -> None:
        self.entry = entry

    def swap(self, expected: LeaseEntry, new: LeaseEntry) -> bool:
        if self.entry != expected:
            return False
        self.entry = new
        return True


def holder(owner: str = "mine", began: float = 0.0) -> LeaseRule:
    rule = LeaseRule(owner)
    rule.swapped(LeaseEntry(3, 0, owner), began)
    return rule


def test_a_lease_that_stands_still_is_taken_when_its_holder_has_stopped_by_its_own_clock() -> None:
    rule = LeaseRule("mine")
    for i in range(100):  # it is renewed
        assert rule.poll(replace(OTHER, count=i), i * (TIMING.failover_ttl + TIMING.failover_margin)) is None
    rule = LeaseRule("mine")
    assert rule.poll(OTHER, 100.0) is None
    assert rule.poll(OTHER, 100.0 + TIMING.failover_ttl + TIMING.failover_margin) is None
    assert rule.poll(OTHER, 100.01 + TIMING.failover_ttl + TIMING.failover_margin) == LeaseEntry(4, 0, "mine")


def test_who_lost_the_race_watches_the_winner_from_its_first_sight() -> None:
    rule = LeaseRule("mine")
    rule.poll(OTHER, 0.0)
    rule.failed()
    assert rule.poll(OTHER, 100.0) is None  # what it reads may be old: it waits anew


def test_a_job_that_is_over_is_taken_by_nobody() -> None:
    rule = LeaseRule("mine")
    over = replace(OTHER, verdict=1)
    assert rule.poll(over, 0.0) is None
    assert rule.poll(over, 1000.0) is None
    assert rule.poll(replace(over, owner=""), 1000.0) is None


def test_it_is_held_from_the_begin_of_the_swap() -> None:
    rule = LeaseRule("mine")
    assert not rule.holds(0.0)
    rule.swapped(LeaseEntry(1, 0, "mine"), 10.0)  # and that has taken some time
    assert rule.holds(9.99 + TIMING.failover_ttl)
    assert not rule.holds(10.0 + TIMING.failover_ttl)
    rule.failed()
    assert not rule.holds(10.0)


def test_a_renewal_counts_and_keeps_epoch_and_owner() -> None:
    assert TIMING.failover_ttl >= 4 * TIMING.failover_renew  # several times before a standby may come
    rule = holder()
    entry = rule.renewal()
    assert entry == LeaseEntry(3, 1, "mine")
    rule.swapped(entry, 2.0)
    assert rule.renewal() == LeaseEntry(3, 2, "mine")
    assert rule.released() == LeaseEntry(3, 2, "")
    assert rule.job_over(1) == LeaseEntry(3, 2, "mine", 1)
    assert rule.holds(2.0)


@pytest.mark.parametrize(
    "stopped", [0.0, TIMING.failover_ttl - 0.01, TIMING.failover_ttl + TIMING.failover_margin, 1000.0]
)
def test_a_holder_that_was_stopped_can_neither_serve_nor_swap_once_another_has_it(stopped: float) -> None:
    """Whatever its clock says: the swap decides. And by its clock it has stopped before another may begin."""
    cell, old, new = Cell(LeaseEntry(0)), LeaseRule("old"), LeaseRule("new")
    first = old.poll(cell.entry, 0.0)
    assert cell.swap(LeaseEntry(0), first)
    old.swapped(first, 0.0)
    assert new.poll(cell.entry, 0.01) is None  # seen after it was put there
    second = new.poll(cell.entry, 0.02 + TIMING.failover_ttl + TIMING.failover_margin)
    assert cell.swap(first, second)
    assert not cell.swap(first, old.renewal())
    assert not old.holds(0.02 + TIMING.failover_ttl + TIMING.failover_margin + stopped)


def test_a_stale_look_at_the_register_takes_nothing() -> None:
    """A network file system may show an old entry for a minute."""
    cell, new = Cell(replace(OTHER, count=50)), LeaseRule("new")
    new.poll(OTHER, 0.0)
    wanted = new.poll(OTHER, 60.0)
    assert not cell.swap(OTHER, wanted)


@pytest.mark.parametrize(
    "entry",
    [LeaseEntry(0), LeaseEntry(3, 9, ""), LeaseEntry(3, 9, "mine")],
    ids=["never held", "given back", "of our former attempt"],
)
def test_a_lease_that_nobody_else_holds_is_taken_at_once(entry: LeaseEntry) -> None:
    assert LeaseRule("mine").poll(entry, 7.0) == LeaseEntry(entry.epoch + 1, 0, "mine")
