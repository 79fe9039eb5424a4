"""Holding a lease: a clock by hand, a register in memory that may fail, hang or lie about its answer."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.util import scaled, wait_for
from torchft_x.core.lighthouse.lease import LeaseEntry
from torchft_x.rpc.lighthouse.failover import lease as module
from torchft_x.rpc.lighthouse.failover.lease import Lease, LeaseLostError
from torchft_x.timing import TIMING


class Cell:
    """See the module."""

    def __init__(self) -> None:
        self.entry = LeaseEntry(0)
        self.fails = 0  # so many of the next calls raise
        self.open = threading.Event()  # calls wait for it
        self.open.set()
        self.swaps = 0

    def read(self) -> LeaseEntry | None:
        self._answer()
        return self.entry

    def swap(self, expected: LeaseEntry, new: LeaseEntry) -> bool:
        self._answer()
        self.swaps += 1
        if self.entry == new:
            return True
        if self.entry != expected:
            return False
        self.entry = new
        return True

    def _answer(self) -> None:
        self.open.wait(scaled(10.0))
        if self.fails > 0:
            self.fails -= 1
            raise OSError(5, "Input/output error")


class Bench:
    """One register, one clock, contenders."""

    def __init__(self) -> None:
        self.cell = Cell()
        self.now = 0.0
        self.lost: list[str] = []

    def lease(self, owner: str) -> Lease:
        return Lease(self.cell, owner, self.lost.append, clock=lambda: self.now)

    def held(self, owner: str = "a") -> Lease:
        lease = self.lease(owner)
        assert lease.acquire(self.wait) is lease.entry
        return lease

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.now > 100.0


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_first_one_holds_it_and_the_second_watches(bench: Bench) -> None:
    first, second, watched = bench.held(), bench.lease("b"), list[LeaseEntry]()

    def wait(seconds: float) -> bool:
        first.confirm()
        return bench.wait(seconds)

    assert second.acquire(wait, watched.append) is None, "told to stop"
    assert bench.now > 100.0
    assert {e.owner for e in watched} == {"a"}
    assert first.holds()
    assert not bench.lost


def test_a_holder_that_says_nothing_any_more_is_followed(bench: Bench) -> None:
    first, second = bench.held(), bench.lease("b")
    assert second.acquire(bench.wait) == LeaseEntry(2, 0, "b")
    assert TIMING.failover_ttl + TIMING.failover_margin < bench.now < TIMING.failover_ttl + TIMING.failover_margin + 1.0
    with pytest.raises(LeaseLostError):
        first.confirm()
    assert len(bench.lost) == 1
    assert not first.holds()
    second.confirm()


def test_a_confirm_of_one_whose_clock_stood_still_fails_too(bench: Bench) -> None:
    first, second = bench.held(), bench.lease("b")
    second.acquire(bench.wait)
    bench.now = 0.1
    assert first.holds(), "by its clock"
    with pytest.raises(LeaseLostError, match="another lighthouse"):
        first.confirm()
    assert not first.holds() or bench.lost


def test_one_that_gives_it_back_is_followed_at_once(bench: Bench) -> None:
    bench.held().end()
    assert bench.lease("b").acquire(bench.wait) == LeaseEntry(2, 0, "b")
    assert bench.now == 0.0


def test_a_next_attempt_of_the_holder_follows_at_once(bench: Bench) -> None:
    bench.held()
    assert bench.lease("a").acquire(bench.wait) == LeaseEntry(2, 0, "a")
    assert bench.now == 0.0


def test_a_job_that_is_over_ends_the_standbys(bench: Bench) -> None:
    bench.held().end(1)
    entry = bench.lease("b").acquire(bench.wait)
    assert entry.verdict == 1
    assert bench.now == 0.0


def test_a_register_that_can_not_be_read_is_waited_for(bench: Bench) -> None:
    told: list[str] = []
    bench.cell.fails = 20
    assert bench.lease("a").acquire(bench.wait, on_silence=told.append) == LeaseEntry(1, 0, "a")
    assert told == ["Input/output error"]


def test_while_the_register_hangs_the_lease_ends_by_the_holders_clock(bench: Bench) -> None:
    lease = bench.held()
    bench.cell.open.clear()
    lease.start()  # its thread hangs in the first renewal
    bench.now = TIMING.failover_ttl - 0.01
    assert lease.holds()
    bench.now = TIMING.failover_ttl
    assert not lease.holds()
    assert len(bench.lost) == 1
    bench.cell.open.set()


def test_who_has_lost_it_neither_gives_it_back_nor_ends_the_job(bench: Bench) -> None:
    first, second = bench.held(), bench.lease("b")
    second.acquire(bench.wait)
    first.end()
    first.end(0)
    assert bench.cell.entry == LeaseEntry(2, 0, "b")


def test_a_register_that_fails_for_a_moment_costs_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL", 0.0)
    lease = bench.held()
    bench.cell.fails = 3
    lease.confirm()
    assert bench.cell.entry == LeaseEntry(1, 1, "a")
    assert not bench.lost


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewals come a hundred times a second."""
    monkeypatch.setattr(module, "TIMING", replace(TIMING, failover_renew=0.01))


@pytest.mark.usefixtures("often")
def test_the_thread_renews_until_it_is_given_back(bench: Bench) -> None:
    lease = bench.held()
    lease.start()
    wait_for(lambda: bench.cell.swaps >= 3)
    lease.end()
    assert bench.cell.entry.owner == ""
    assert not bench.lost


@pytest.mark.usefixtures("often")
def test_the_thread_notices_that_another_one_has_it(bench: Bench) -> None:
    lease = bench.held()
    lease.start()
    bench.cell.entry = LeaseEntry(2, 0, "b")
    wait_for(lambda: bench.lost)
    assert not lease.holds()
    assert len(bench.lost) == 1
