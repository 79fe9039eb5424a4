"""The present quorum and who has asked for the next: sets that are kept, and compared here with the records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.scene import OURS, member, quorum
from torchft_x.core.membership.current_quorum import QuorumState, candidates
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.messages.lighthouse import Hello
from torchft_x.core.quorum import Candidate, Form
from torchft_x.core.types import Member, Quorum, State


class Desk:
    """A quorum state and its members, who take grants."""

    def __init__(self, *names: str, first_id: int = 100) -> None:
        self.members = MemberTable(0.0)
        self.quorum_state = QuorumState(first_id, self.members)
        self.sessions = 0
        for name in names:
            self.open(name)

    def open(self, name: str) -> None:
        self.sessions += 1
        self.members.open(Hello(self.sessions, name, library=OURS, runs_on=True), 0.0)

    def ask(self, name: str, since: float = 0.0, state: State | None = None) -> None:
        self.members.ask(self.members.get(name), Candidate(member(name, state), since=since))

    def lose(self, name: str, *, late: bool = False) -> None:
        self.members.lose(self.members.get(name), "silent", late=late)

    def change(self, name: str, **fields: Any) -> None:
        """Set fields that nothing is counted by."""
        for field, value in fields.items():
            setattr(self.members.get(name), field, value)

    def issue(self, *members: Member, rebuild: bool = False, now: float = 5.0) -> Quorum:
        form = Form(members, rebuild)
        return self.quorum_state.issue(form, now=now, unix=1000.0, lease=30.0)


def test_R1_every_quorum_takes_a_new_id_and_keeps_the_process_groups_unless_told() -> None:
    desk = Desk("a", "b")
    first, second, third = (desk.issue(member("a"), member("b"), rebuild=r) for r in (False, False, True))
    assert [q.id for q in (first, second, third)] == [100, 101, 102]
    assert [q.config_id for q in (first, second, third)] == [100, 100, 102]
    assert [q.number for q in (first, second, third)] == [1, 2, 3]
    assert (third.created, third.lease, third.granted_through) == (1000.0, 30.0, 1)
    assert (desk.quorum_state.quorum_id, desk.quorum_state.current) == (102, third)
    for heard, expected in ((7, 103), (102, 103), (103, 104), (500, 501), (300, 501)):  # above all that were heard
        desk.quorum_state.raise_ids(heard)
        assert desk.quorum_state.next_id == expected


def test_a_quorum_uses_up_the_joins_and_begins_the_leases() -> None:
    desk = Desk("a", "b", "c")
    for name in "abc":
        desk.ask(name)
    record = desk.members.get("a")
    desk.members.call(record, 9)
    q = desk.issue(member("a"), member("b"), now=5.0)
    assert (record.join, record.calls, record.quorum_id, record.lease_sent) == (None, (), q.id, 5.0)
    assert (desk.quorum_state.asking, desk.quorum_state.missing, desk.quorum_state.silent) == (
        {"c"},
        {"a", "b"},
        {"a", "b"},
    )
    other = desk.members.get("c")
    assert (other.quorum_id, other.lease_sent) == (0, None)


def test_a_quorum_begins_anew() -> None:
    desk = Desk("a", "b")
    desk.issue(member("a"), member("b"))
    desk.lose("b")
    desk.quorum_state.broken = "b is lost"
    q = desk.issue(member("a", State(4, 9)))
    assert (desk.quorum_state.gone, desk.quorum_state.broken, desk.quorum_state.reached) == (set(), "", 4)
    assert (desk.quorum_state.granted_through, q.granted_through) == (5, 5)


def test_a_member_holds_the_quorum_when_it_is_in_it_and_has_received_it() -> None:
    desk = Desk("a", "b", "c")
    desk.change("c", quorum_id=0)
    assert not any(desk.quorum_state.holds_current(r) for r in desk.members)  # there is none
    q = desk.issue(member("a"), member("b"))
    desk.change("b", quorum_id=q.id - 1)
    desk.change("c", quorum_id=q.id)
    assert [r.replica_id for r in desk.members if desk.quorum_state.holds_current(r)] == ["a"]


class TestPending:
    """R5: no grant grows when the quorum will be followed by another one."""

    @pytest.mark.parametrize("why", ["", "asks", "lost", "broken", "forgotten"])
    def test_when_it_changes(self, why: str) -> None:
        desk = Desk("a", "b", "c")
        desk.issue(member("a"), member("b"))
        if why == "asks":
            desk.ask("c")
        elif why == "lost":
            desk.lose("b")
        elif why == "broken":
            desk.quorum_state.broken = "a step failed"
        elif why == "forgotten":
            desk.quorum_state.forget()
        assert desk.quorum_state.pending is bool(why)

    def test_when_one_heals_or_takes_no_grants(self) -> None:
        desk = Desk("a", "b")
        desk.issue(member("a", State(3, 9)), member("b"))
        assert desk.quorum_state.pending
        desk = Desk("a", "b")
        desk.change("b", runs_on=False)
        desk.issue(member("a"), member("b"))
        assert desk.quorum_state.pending
        desk.issue(member("a"))
        assert not desk.quorum_state.pending


def test_stopping_short_is_asking_where_the_others_were_granted_more() -> None:
    desk = Desk("a", "b")
    assert not desk.quorum_state.stops_short(member("a"))
    q = desk.issue(member("a", State(4, 9)), member("b", State(4, 9)))
    assert not desk.quorum_state.stops_short(member("a", State(4, 9)))  # one step at a time: everybody asks after it
    desk.quorum_state.granted_through = 6
    assert desk.quorum_state.stops_short(member("a", State(5, q.id)))
    assert not desk.quorum_state.stops_short(member("a", State(6, q.id)))


def test_a_peers_client_in_the_quorum_committed_where_its_step_says() -> None:
    desk = Desk("a", "b")
    assert desk.quorum_state.with_committed_in(member("a", State(4))).state == State(4)
    q = desk.issue(member("a", State(4, 9)), member("b", State(4, 9)))
    told = {step: desk.quorum_state.with_committed_in(member("a", State(step))).state for step in (3, 4, 5, 6)}
    assert told == {3: State(3, 0), 4: State(4, 9), 5: State(5, q.id), 6: State(6, 0)}
    assert desk.quorum_state.with_committed_in(member("x", State(5))).state == State(5)


def test_candidates_come_in_the_order_in_which_they_asked() -> None:
    desk = Desk("a", "b", "c")
    for name, since in (("b", 3.0), ("a", 2.0), ("c", 4.0)):
        desk.ask(name, since)
    assert [c.since for c in candidates(desk.members)] == [2.0, 3.0, 4.0]
    desk.lose("a")
    assert [c.since for c in candidates(desk.members)] == [3.0, 4.0]


def test_R8_what_is_taken_over() -> None:
    desk = Desk("a", first_id=100)
    desk.change("a", address="http://known")
    old = quorum(member("a"), member("b"), member("peer", library=""), id=300, granted_through=5, number=7)
    older = quorum(member("b"), member("z"), id=250)
    desk.quorum_state.adopt(old, (older,), started_at=2.0, granted_through=9)
    t = desk.quorum_state
    assert (t.current, t.granted_through, t.next_id, t.missing) == (old, 9, 301, {"a", "b", "peer"})
    records = {r.replica_id: r for r in desk.members}
    assert sorted(records) == ["a", "b", "peer", "z"]
    assert {r.lease_sent for r in records.values()} == {2.0}
    assert [n for n, r in records.items() if r.unary] == ["peer"]
    assert (records["a"].address, records["b"].address) == ("http://known", "http://b")
    assert t.chain.members == {"b", "z"}
    assert desk.issue(member("a")).number == 8
    desk.quorum_state.adopt(quorum(member("a"), id=400, granted_through=50), (), started_at=2.0)
    assert desk.quorum_state.granted_through == 50


def test_after_a_quorum_each_member_counts_as_what_it_is() -> None:
    desk = Desk("a", "away", "lost")
    desk.members.ensure("peer", 0.0, unary=True)
    for name in ("a", "away", "peer", "lost"):
        desk.ask(name)
    desk.members.close(desk.members.get("away"))
    desk.lose("lost")
    desk.issue(*map(member, ("a", "away", "peer", "lost")))
    t = desk.quorum_state
    assert (t.asking, t.missing, t.gone, t.silent) == (set(), {"a", "away", "peer"}, {"lost"}, {"a", "peer"})


def test_announced_groups_of_which_nobody_is_here() -> None:
    desk = Desk("train_0:a", "train_1:a", "x:a")
    announced = {"train_0", "1", "2", "x"}
    assert desk.quorum_state.absent_groups(announced) == {"2"}
    assert desk.quorum_state.absent_groups(set()) == set()
    desk.ask("train_0:a")
    desk.lose("train_1:a")
    assert desk.quorum_state.absent_groups(announced) == {"1", "2"}
    desk.members.close(desk.members.get("x:a"))
    assert desk.quorum_state.absent_groups(announced - {"2"}) == {"1", "x"}


CHANGES = {
    "ask": lambda desk, name, record: desk.ask(name),
    "withdraw": lambda desk, name, record: desk.members.withdraw(record),
    "lose": lambda desk, name, record: desk.lose(name),
    "leave out": lambda desk, name, record: desk.lose(name, late=True),
    "find": lambda desk, name, record: desk.members.find(record),
    "away": lambda desk, name, record: desk.members.close(record),
    "open": lambda desk, name, record: desk.open(name),
    "call": lambda desk, name, record: (desk.members.call(record, 7), desk.ask(name)),
    "hang up": lambda desk, name, record: desk.members.hang_up(7),
    "issue": lambda desk, name, record: desk.issue(*[c.member for c in candidates(desk.members)]),
    "adopt": lambda desk, name, record: desk.quorum_state.adopt(quorum(member(name), id=900), (), started_at=0.0),
    "forget": lambda desk, name, record: desk.quorum_state.forget(),
    "prune": lambda desk, name, record: desk.members.prune(desk.quorum_state.ran, 1e9),
}
"""All that happens to records. Nothing else has to be called for the counts to be right."""


@given(st.lists(st.tuples(st.sampled_from("abcp"), st.sampled_from(sorted(CHANGES))), max_size=30))
def test_the_sets_say_what_the_records_say(changes: list[tuple[str, str]]) -> None:
    desk = Desk("a", "b", "c")
    desk.members.ensure("p", 0.0, unary=True)
    for name, what in changes:
        CHANGES[what](desk, name, desk.members.ensure(name, 0.0, unary=name == "p"))
        t, records = desk.quorum_state, list(desk.members)
        asking = {r.replica_id for r in records if r.join is not None and not r.lost}
        lost = {r.replica_id for r in records if r.lost}
        here = {r.replica_id for r in records if r.unary or r.session is not None}
        quiet = {r.replica_id for r in records if r.join is None}
        assert (t.asking, t.missing, t.gone) == (asking, set(t.inside) - asking - lost, t.inside & lost)
        assert t.silent == (here & quiet) - lost


def test_R8_what_another_lighthouse_knows_better_is_forgotten() -> None:
    desk = Desk("a", "b")
    for _ in range(2):
        desk.issue(member("a"), member("b"))
    assert len(desk.quorum_state.chain.open) == 1  # nobody is known to have received the second
    desk.lose("b")
    desk.quorum_state.broken = "b is lost"
    desk.quorum_state.granted_through = 9
    desk.quorum_state.forget()
    t = desk.quorum_state
    assert (t.current, t.quorum_id, t.inside, t.missing, t.gone) == (None, 0, frozenset(), set(), set())
    assert (t.broken, t.granted_through, t.chain.open) == ("", 0, ())
