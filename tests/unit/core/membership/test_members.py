"""Who is here, who speaks on which session, whose attempt is the newest, and for whom time has run out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.scene import member, quorum
from torchft_x.core.journal import MemberEntry
from torchft_x.core.membership.failure_detector import SilenceLimits
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.membership.record import MemberRecord
from torchft_x.core.messages.job import SupervisorHere
from torchft_x.core.messages.lighthouse import Hello
from torchft_x.core.quorum import Candidate
from torchft_x.core.types import AttemptId


def hello(replica_id: str, session: int = 1, **fields: Any) -> Hello:
    return Hello(session, replica_id, **fields)


class TestOver:
    """R9(b): what proves that a member commits nothing more."""

    def over(self, record: MemberRecord, now: float) -> bool:
        return record.is_over(now, lease=30.0, alone=5.0)

    def test_a_peers_client_has_no_lease_and_is_over_when_it_is_silent(self) -> None:
        record = MemberRecord("a", heard=10.0, unary=True, lease_sent=0.0)
        assert not self.over(record, 15.0)
        assert self.over(record, 15.1)

    def test_proof_or_the_end_of_the_lease_it_was_sent(self) -> None:
        assert self.over(MemberRecord("a", 0.0, proof="it has left"), 0.0)
        record = MemberRecord("a", 0.0, lease_sent=10.0)
        assert not self.over(record, 39.9)
        assert self.over(record, 40.0)
        assert not self.over(MemberRecord("a", 0.0), 1000.0)  # never had one: nothing is known


class TestSessions:
    def test_R3_a_new_session_replaces_the_older_one_and_its_join(self) -> None:
        members = MemberTable(0.0)
        record = members.open(hello("a:1", 1), 1.0)
        record.join = object()  # type: ignore[assignment]
        record.notified = True
        record.probed_at = 1.5
        assert members.open(hello("a:1", 2, address="http://new", quorum=quorum(id=9)), 2.0) is record
        assert (members.on(1), members.on(2)) == (None, record)
        assert (record.join, record.notified, record.probed_at, record.heard) == (None, False, None, 2.0)
        assert (record.address, record.quorum_id, len(members)) == ("http://new", 9, 1)
        members.open(hello("a:1", 3), 3.0)
        assert record.quorum_id == 0

    def test_who_had_none_before_is_no_peers_client_any_more(self) -> None:
        members = MemberTable(0.0)
        record = members.ensure("a:1", 0.0, unary=True)
        assert members.ensure("a:1", 5.0, unary=False) is record
        assert (record.unary, record.heard) == (True, 0.0)
        members.open(hello("a:1"), 1.0)
        assert not record.unary

    def test_unary_requests_are_open_until_they_are_answered_or_gone(self) -> None:
        members = MemberTable(0.0)
        record = members.ensure("peer", 0.0, unary=True)
        for call in (1, 2, 3):
            members.call(record, call)
        members.ask(record, join := Candidate(member("peer"), since=0.0))
        members.hang_up(2)
        assert (record.calls, record.join) == ((1, 3), join)
        members.answer(record)
        assert (record.calls, record.join) == ((), join)
        members.hang_up(1)
        assert record.join is join  # it was answered before
        members.call(record, 4)
        members.hang_up(4)
        assert (record.calls, record.join) == ((), None)


class TestAttempts:
    """R2: one attempt per group."""

    def members(self, replica_id: str, attempt_id: AttemptId) -> MemberTable:
        members = MemberTable(0.0)
        assert members.supersede(hello(replica_id, attempt_id=attempt_id)) is None
        members.open(hello(replica_id, attempt_id=attempt_id), 0.0)
        return members

    @pytest.mark.parametrize("newer", [AttemptId(1, 5.0), AttemptId(0, 6.0), AttemptId(0, 5.0, "heard later")])
    def test_a_newer_attempt_fences_the_older_for_ever(self, newer: AttemptId) -> None:
        members = self.members("g:old", AttemptId(0, 5.0))
        assert members.superseded_by(hello("g:new", attempt_id=newer)) == ""
        fenced = members.supersede(hello("g:new", attempt_id=newer))
        assert fenced.replica_id == "g:old"
        assert members.superseded_by(hello("g:old", attempt_id=AttemptId(9, 9.0))) == "g:new"

    @pytest.mark.parametrize("older", [AttemptId(0, 9.0), AttemptId(1, 4.0)])
    def test_an_older_attempt_that_comes_late_is_fenced(self, older: AttemptId) -> None:
        members = self.members("g:new", AttemptId(1, 5.0))
        assert members.superseded_by(hello("g:old", attempt_id=older)) == "g:new"
        assert members.superseded_by(hello("other:old", attempt_id=older)) == ""
        assert members.superseded_by(hello("g:new", attempt_id=older)) == ""  # itself
        # One that comes back fences nobody.
        assert members.supersede(hello("g:new", attempt_id=AttemptId(1, 5.0))) is None
        assert members.superseded_by(hello("g:new", attempt_id=AttemptId(1, 5.0))) == ""

    def test_the_end_of_a_process_ends_all_that_it_was_called(self) -> None:
        members = self.members("g:1", AttemptId(0, 0.0, "token"))
        members.open(hello("h:1", 2, attempt_id=AttemptId(0, 0.0, "token")), 0.0)
        members.open(hello("none:1", 3), 0.0)
        assert not members.has_ended(AttemptId(0, 0.0, "token"))
        assert sorted(r.replica_id for r in members.end("token")) == ["g:1", "h:1"]
        assert members.has_ended(AttemptId(7, 7.0, "token"))
        assert members.end("unheard of") == []
        assert members.end("") == []
        assert not members.has_ended(AttemptId())

    def test_a_member_that_comes_back_with_another_token_is_found_by_that(self) -> None:
        members = self.members("g:1", AttemptId(0, 0.0, "old"))
        members.open(hello("g:1", 2, attempt_id=AttemptId(0, 0.0, "new")), 1.0)
        assert members.end("old") == []
        assert [r.replica_id for r in members.end("new")] == ["g:1"]

    def test_the_next_attempt_is_above_every_one_heard_of(self) -> None:
        members = self.members("train_3:x", AttemptId(4, 0.0))
        members.supersede(hello("train_4:x", attempt_id=AttemptId(8, 0.0)))
        assert members.next_attempt("3") == members.next_attempt("train_3") == 5
        assert members.next_attempt("5") == 0
        members.begun("3", 9)
        members.begun("3", 7)
        assert members.next_attempt("3") == 10
        members.begun("5", 0)
        assert members.next_attempt("5") == 1


class TestTime:
    def test_silence_is_the_lighthouses_own_when_its_ticks_come_late(self) -> None:
        members = MemberTable(10.0)
        record = members.ensure("a", 9.9, unary=False)
        members.supervisors.arrive(SupervisorHere("g", "host", stream=1), 9.0)
        members.supervisors.begin("g", 0, "t")
        assert members.forgive(10.2, tick=0.1) == 0.0  # twice the tick is no trouble
        assert record.heard == 9.9
        assert members.forgive(15.2, tick=0.1) == pytest.approx(4.9)
        assert record.heard == pytest.approx(14.8)
        assert members.supervisors.heard("t") == pytest.approx(13.9)
        record.heard = 18.0
        members.forgive(18.2, tick=0.1)
        assert record.heard == 18.2  # never in the future
        assert members.forgive(18.3, tick=0.1) == 0.0

    def test_whoever_is_found_again_is_late_no_more_and_may_be_silent_at_once(self) -> None:
        members, limits = MemberTable(0.0), SilenceLimits.all(1.5)
        found = members.ensure("a", 0.0, unary=False)
        assert members.lose(found, "stopped", late=True)
        members.ensure("b", 1.0, unary=False)
        assert members.silent(1.6, limits) == []
        members.find(found)
        assert (found.lost, found.late) == ("", False)
        assert members.silent(1.7, limits) == [found]

    def test_silent_are_those_for_whom_time_has_just_run_out(self) -> None:
        members = MemberTable(0.0)
        for name, heard in (("a", 0.0), ("b", 0.1), ("c", 0.0)):
            members.ensure(name, heard, unary=False)
        members.lose(members.get("c"), "silent")
        limits = SilenceLimits.all(5.0)
        assert members.newly_lost(5.0, limits) == []
        assert [(r.replica_id, why) for r, why in members.newly_lost(5.1, limits)] == [("a", "silent for 5 s")]

    def test_away_are_those_of_the_quorum_who_may_or_may_not_be_dead(self) -> None:
        members = MemberTable(0.0)
        members.open(hello("here", 1), 0.0)
        members.ensure("peer", 0.0, unary=True)
        members.ensure("outside", 0.0, unary=False)
        for name, proof in (("away", ""), ("over", "it has left")):
            members.ensure(name, 0.0, unary=False).proof = proof
        assert [r.replica_id for r in members.away(frozenset({"here", "peer", "away", "over"}))] == ["away"]

    def test_away_are_told_in_the_order_in_which_they_came(self) -> None:
        members = MemberTable(0.0)
        records = [members.open(hello(name, n), 0.0) for n, name in enumerate("bca")]
        for record in (records[2], records[0], records[1]):
            members.close(record)
        assert [r.replica_id for r in members.away(frozenset("abc"))] == ["b", "c", "a"]
        members.open(hello("c", 9), 1.0)
        assert [r.replica_id for r in members.away(frozenset("abc"))] == ["b", "a"]

    def test_the_lost_are_forgotten_when_nobody_will_ask_about_them(self) -> None:
        members = MemberTable(0.0)
        for n, name in enumerate(("gone", "kept", "speaks", "asks", "lives")):
            record = members.open(hello(name, n + 1, attempt_id=AttemptId(0, 0.0, name)), 0.0)
            if name != "lives":
                members.lose(record, "silent")
            if name != "speaks":
                members.close(record)
            if name == "asks":
                members.call(record, 7)
        members.prune(frozenset({"kept"}), 1.0)
        assert sorted(r.replica_id for r in members) == ["asks", "kept", "lives", "speaks"]
        assert members.end("gone") == []
        assert len(members.end("kept")) == 1

    def test_of_two_with_one_attempt_the_other_is_still_found(self) -> None:
        members = MemberTable(0.0)
        for n, name in enumerate(("gone", "kept")):
            record = members.open(hello(name, n + 1, attempt_id=AttemptId(0, 0.0, "both")), 0.0)
            members.lose(record, "silent")
            members.close(record)
        members.prune(frozenset({"kept"}), 1.0)
        assert [r.replica_id for r in members.end("both")] == ["kept"]


class TestPace:
    """How long steps take, as they are seen: `LastQuorumFile.longest_step`."""

    def test_what_a_member_says_counts_and_the_longest_stays(self) -> None:
        record = MemberRecord("a", 0.0)
        for told in (0.7, 0.2):
            record.note_step(1, told, 1.0)
        assert (record.longest_step, record.pace) == (0.7, None)

    def test_what_is_seen_counts_by_the_step(self) -> None:
        record = MemberRecord("a", 0.0, pace=(1, 1.0))
        record.note_step(3, 0.0, 5.0)
        assert (record.longest_step, record.pace) == (2.0, (3, 5.0))
        record.note_step(3, 0.0, 9.0)  # it asks again at the same step: the time between was waiting
        assert (record.longest_step, record.pace) == (2.0, (3, 9.0))

    @pytest.mark.parametrize("fields", [{"lost": "silent"}, {"pause_until": 1.0}, {"pause_until": 2.0}])
    def test_a_loss_and_a_pause_are_no_steps(self, fields: dict[str, Any]) -> None:
        record = MemberRecord("a", 0.0, pace=(1, 1.0), **fields)
        record.note_step(2, 0.0, 90.0)
        assert record.longest_step == 0.0

    def test_whoever_speaks_is_under_no_suspicion(self) -> None:
        record = MemberRecord("a", 0.0, suspected=True, probed_at=1.0)
        record.receive(2.0)
        assert (record.heard, record.suspected, record.probed_at) == (2.0, False, None)


class TestRestored:
    """Members that the lighthouse before has written down (R8c)."""

    @pytest.mark.parametrize("order", [("g:0", "g:1"), ("g:1", "g:0")])
    def test_the_newest_attempt_of_a_group_is_known(self, order: tuple[str, str]) -> None:
        members = MemberTable(0.0)
        for name in order:
            members.restore(MemberEntry(name, AttemptId(int(name[-1]), 0.0, f"token-{name}")), 0.0)
        assert members.superseded_by(hello("g:0", attempt_id=AttemptId(0, 0.0, "token-g:0"))) == "g:1"
        assert members.superseded_by(hello("g:1", attempt_id=AttemptId(1, 0.0, "token-g:1"))) == ""

    def test_of_two_that_are_alike_the_first_stays(self) -> None:
        members = MemberTable(0.0)
        for name in ("g:a", "g:b"):
            members.restore(MemberEntry(name, AttemptId()), 0.0)
        assert members.next_attempt("g") == 1
        assert members.superseded_by(hello("g:c", attempt_id=AttemptId(-1, 0.0))) == "g:a"


class TestRecordsByName:
    def test_lost_are_those_that_nobody_waits_for(self) -> None:
        members = MemberTable(0.0)
        gone, here, other = (members.open(hello(f"{name}:1", i), 0.0) for i, name in enumerate("abc", 1))
        for record in (gone, here, other):
            members.close(record)
        for record in (gone, other):
            members.lose(record, "it was silent")
        assert members.lost_without_session(frozenset({"a:1", "b:1"})) == [gone]

    def test_a_member_of_before_runs_on_as_it_did(self) -> None:
        members = MemberTable(0.0)
        members.restore(MemberEntry("a:1", AttemptId(1, 0.0, "token"), "boot", runs_on=True), 0.0)
        (record,) = members.named(["a:1", "b:1"])  # who is not known is left out
        assert record.runs_on
