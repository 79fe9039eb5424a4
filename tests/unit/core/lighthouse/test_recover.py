"""R8: what a lighthouse that has just started must wait for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.scene import member, quorum
from torchft_x.core.lighthouse.recover import (
    Adopt,
    MemberReport,
    NothingToAdopt,
    RestartRecovery,
    decide_restart,
)
from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.core.messages.lighthouse import Hello
from torchft_x.core.quorum import Wait

OLD = quorum(member("a"), member("b"), id=10)
NEW = quorum(member("b"), member("c"), id=11)


def decided(now: float = 0.0, reports: dict[str, MemberReport] | None = None, **config: Any) -> Any:
    """Return the decision `now` seconds after the start. The old lease ends after 121 s."""
    config = {"lease": 120.0, "lease_margin": 1.0, "hello_grace": 1.0, **config}
    return decide_restart(LighthouseConfig(**config), reports or {}, started_at=100.0, now=100.0 + now)


def report(quorum_: Any, valid: bool = True) -> MemberReport:
    return MemberReport(quorum_, valid)


@pytest.mark.parametrize(
    ("now", "job", "decision"),
    [
        (0.0, {}, NothingToAdopt()),  # a new job starts at once
        (0.9, {"new_job": False}, 101.0),  # of unknown age it listens for a moment
        (1.0, {"new_job": False}, NothingToAdopt()),
        (120.9, {"restarted": True}, 221.0),  # after a restart without reports it waits for the lease
        (121.0, {"restarted": True}, NothingToAdopt()),
        (120.9, {"restarted": True, "new_job": False}, 221.0),  # whatever the grace
        (121.0, {"restarted": True, "new_job": False, "hello_grace": 500.0}, NothingToAdopt()),
    ],
)
def test_R8_when_a_lighthouse_without_reports_starts(now: float, job: Any, decision: NothingToAdopt | float) -> None:
    found = decided(now, **job)
    assert found == decision or (isinstance(found, Wait) and found.until == decision)


def test_R8a_all_members_report_in_person_and_with_a_valid_lease() -> None:
    assert decided(reports={"a": report(OLD), "b": report(OLD)}) == Adopt(OLD)
    assert isinstance(decided(reports={"a": report(OLD), "b": report(OLD, valid=False)}), Wait)
    decision = decided(reports={"a": report(OLD)})
    assert "takes over quorum 10: waiting until b report with a valid lease" in decision.reason
    mixed = quorum(member("a"), member("theirs", library=""), id=10)
    assert decided(reports={"a": report(mixed)}) == Adopt(mixed)  # a peer's client need not report


def test_R8a_a_member_that_knows_a_newer_quorum_changes_the_question() -> None:
    decision = decided(reports={"a": report(OLD), "b": report(NEW)})
    assert "quorum 11: waiting until c" in decision.reason
    assert decided(reports={"a": report(OLD), "b": report(NEW), "c": report(NEW)}) == Adopt(NEW)


def test_R8a_who_has_not_received_it_vouches_too() -> None:
    """The lighthouse died while sending quorum 11. Nothing can have been committed in it: b never ran in it."""
    assert decided(reports={"a": report(OLD), "b": report(OLD), "c": report(NEW)}) == Adopt(NEW, (OLD,))
    assert decided(reports={"b": report(NEW), "c": MemberReport(None, lease_valid=False)}) == Adopt(NEW)
    assert isinstance(decided(reports={"b": report(OLD, valid=False), "c": report(NEW)}), Wait)
    assert decided(reports={"b": MemberReport(None, lease_valid=False)}) == NothingToAdopt()


def test_R8a_what_it_has_received_last_must_not_go_on_elsewhere() -> None:
    """Of quorum 10, which b holds, a is not here: another lighthouse may have let a follow it, and b never heard of it."""
    assert isinstance(decided(reports={"b": report(OLD), "c": report(NEW)}), Wait)
    before = quorum(member("z"), member("a"), id=9)
    told = {"a": report(before), "b": report(OLD), "c": report(NEW)}
    assert isinstance(decided(reports=told), Wait)
    assert decided(reports={**told, "z": report(before)}) == Adopt(NEW, (OLD, before))


def test_R8b_after_a_whole_lease_the_newest_report_is_taken() -> None:
    assert decided(121.0, reports={"a": report(OLD, valid=False)}) == Adopt(OLD)
    older_bind_nobody = decided(121.0, reports={"c": report(NEW), "b": report(OLD)})
    assert older_bind_nobody == Adopt(NEW, ())


P3 = quorum(member("a"), member("b"), member("c"), id=12)


def heard(*said: tuple[str, Any], lease_left: float = 60.0, **config: Any) -> RestartRecovery:
    """These members have reported these quorums, in this order, to a lighthouse that was started at 100."""
    takeover = RestartRecovery(LighthouseConfig(**{"lease": 20.0, "lease_margin": 1.0, **config}), 100.0)
    for replica_id, quorum_ in said:
        takeover.receive(Hello(1, replica_id, quorum=quorum_, lease_left=lease_left, granted_through=len(replica_id)))
    return takeover


def test_a_lease_vouches_while_anything_is_left_of_it() -> None:
    everybody = (("a", OLD), ("b", OLD))
    assert heard(*everybody, lease_left=0.1).decide(100.0) == Adopt(OLD)
    assert isinstance(heard(*everybody, lease_left=0.0).decide(100.0), Wait)


def test_while_members_are_missing_nobody_has_to_be_looked_at() -> None:
    assert heard(("a", OLD)).surely_waits()
    others = heard(("a", OLD), ("b", NEW))
    assert not others.surely_waits()  # as many have reported as it has members, though others
    assert isinstance(others.decide(100.0), Wait)
    assert others.surely_waits()  # until somebody reports
    others.receive(Hello(9, "x"))
    assert not others.surely_waits()
    complete = [heard(("a", OLD), ("b", OLD)), heard(("b", NEW), ("c", NEW))]
    assert [t.surely_waits() for t in complete] == [False] * 2
    takes_back = heard(("a", OLD), ("b", NEW))
    assert isinstance(takes_back.decide(100.0), Wait)
    takes_back.receive(Hello(2, "b", quorum=OLD, lease_left=60.0))
    assert not takes_back.surely_waits()
    assert takes_back.decide(100.0) == Adopt(OLD)


def test_the_highest_grant_that_was_reported_in_that_quorum_counts() -> None:
    takeover = heard(("a", OLD), ("bbb", OLD), ("cccc", NEW))
    assert takeover.granted_through(OLD) == 3
    assert takeover.granted_through(P3) == 0
    takeover.end()
    takeover.receive(Hello(9, "a", quorum=OLD, granted_through=7))
    assert takeover.granted_through(OLD) == 0  # from here on the quorum state knows


QUORUMS = [None, OLD, NEW, P3, quorum(member("a"), member("theirs", library=""), id=13, lease=30.0)]
hellos = st.tuples(st.sampled_from("abcd"), st.integers(0, len(QUORUMS) - 1), st.booleans())


@given(st.lists(hellos, max_size=12), st.sampled_from([0.0, 20.0, 31.0, 121.0]))
def test_it_knows_at_once_that_it_must_wait(said: list[tuple[str, int, bool]], later: float) -> None:
    takeover = RestartRecovery(LighthouseConfig(lease=20.0, restarted=True), 100.0)
    for replica_id, index, valid in said:
        takeover.receive(Hello(1, replica_id, quorum=QUORUMS[index], lease_left=float(valid)))
        waits = takeover.surely_waits()
        decision = takeover.decide(100.0 + later)
        if waits and later < 20.0:
            assert isinstance(decision, Wait)


def test_the_longest_lease_counts() -> None:
    takeover = RestartRecovery(LighthouseConfig(lease=20.0, restarted=True), 100.0)
    takeover.receive(Hello(1, "a", quorum=quorum(member("a"), member("b"), lease=50.0), lease_left=1.0))
    for now, waits in ((150.9, True), (151.0, False)):
        assert isinstance(takeover.decide(now), Wait) is waits
