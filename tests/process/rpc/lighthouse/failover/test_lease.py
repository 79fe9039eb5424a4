"""Holding a lease: a clock by hand, a register in memory that may fail, hang or lie about its answer."""

from __future__ import annotations

from tests.unit.rpc.lighthouse.failover.test_lease import (
    Bench,
    bench,  # noqa: F401
)
from tests.util import wait_for
from torchft_x.core.restart.lease import LeaseEntry
from torchft_x.timing import TIMING


def test_a_register_that_fails_for_a_moment_costs_nothing(bench: Bench) -> None:
    lease = bench.held()
    bench.cell.fails = 3
    lease.confirm()
    assert bench.cell.entry == LeaseEntry(1, 1, "a")
    assert not bench.lost


def test_the_thread_renews_until_it_is_given_back(bench: Bench) -> None:
    lease = bench.held()
    lease.start()
    wait_for(lambda: bench.cell.swaps >= 3, 5 * TIMING.failover_renew)
    lease.end()
    assert bench.cell.entry.owner == ""
    assert not bench.lost


def test_the_thread_notices_that_another_one_has_it(bench: Bench) -> None:
    lease = bench.held()
    lease.start()
    bench.cell.entry = LeaseEntry(2, 0, "b")
    wait_for(lambda: bench.lost, 5 * TIMING.failover_renew)
    assert not lease.holds()
    assert len(bench.lost) == 1
