"""Several lighthouses that serve the same groups: what one of them may conclude without the others.

The rules are in `core.quorum.acceptors`; most of the stories were found by tests/sim with a standby (docs/simulator_found.md).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.scene import Scene, issued, member, notes, of, overs, quorum
from torchft_x.core.messages.lighthouse import (
    Issue,
    Keep,
    LastWord,
    LifeEnded,
    LighthouseEffect,
    Progress,
    Refuse,
    SendWaits,
)
from torchft_x.core.types import JoinReason, Life, Quorum, State

T = State(4, 3)
OF_FIRST, OF_STANDBY = 1 << 51, (1 << 51) + 1
"""Ids of quorums that another life of the first lighthouse issued, and that another standby did."""


def elsewhere(*names: str, id: int = OF_STANDBY, **fields: Any) -> Quorum:
    """A quorum that another lighthouse has issued."""
    return quorum(*(member(n, T) for n in names), id=id, **fields)


class Lights(Scene):
    def bring(self, replica_id: str, held: Quorum | None, state: State = T, **fields: Any) -> list[list[str]]:
        """It comes over from another lighthouse and asks."""
        self.hello(replica_id, quorum=held, state=state, **fields)
        return issued(self.join(replica_id, state, JoinReason.REJOINED))

    def take_over(self, *names: str) -> Quorum:
        """They come over from the first lighthouse, and get a quorum of this one."""
        held = elsewhere(*names, id=OF_FIRST)
        for name in names:
            effects = self.bring(name, held)
        assert effects == [list(names)]
        assert self.lighthouse.current is not None
        return self.lighthouse.current

    def last_word(self, replica_id: str, held: Quorum | None, chain: str = "") -> list[LighthouseEffect]:
        """Its supervisor says that it has ended, and what it had received."""
        return self.feed(LifeEnded(f"token-{replica_id}", -9, LastWord(replica_id, held, chain)))


def first(**config: Any) -> Lights:
    return Lights(place=0, **config)


def standby(**config: Any) -> Lights:
    return Lights(place=1, new_job=False, **config)


def names(s: Lights) -> list[str]:
    assert s.lighthouse.current is not None
    return [m.replica_id for m in s.lighthouse.current.members]


# --- the beginning of a job ------------------------------------------------------------------------------------------


def test_only_the_first_lighthouse_of_a_new_job_begins() -> None:
    assert first().start("a:1").members
    for s in (standby(), first(restarted=True), first(new_job=False)):
        assert s.bring("a:1", None, State()) == []
        assert issued(s.wait(500.0, alive=("a:1",))) == []


def test_a_first_lighthouse_that_is_back_does_not_begin_anew() -> None:
    """Nobody reports to it: the groups go on at the standby."""
    s = first(new_job=False, restarted=True)
    s.hello("d:1")
    s.join("d:1")
    effects = s.wait(3.0, alive=("d:1",))
    assert [w.elsewhere for w in of(SendWaits, effects)] == [True]
    assert "may be at another one" in s.lighthouse.undecided


def test_torchfts_clients_are_refused_because_they_can_not_say_what_they_have_received() -> None:
    (refusal,) = of(Refuse, first().unary("u", 1))
    assert "a lighthouse that is the only one" in refusal.sentence


# --- taking over -----------------------------------------------------------------------------------------------------


def test_a_standby_goes_on_with_most_members_and_issues_one_of_its_own() -> None:
    held = elsewhere("a:1", "b:1", "c:1", id=OF_FIRST)
    s = standby()
    assert s.bring("a:1", held) == []
    assert "Not enough members of quorum" in s.lighthouse.undecided
    s.bring("b:1", held)
    assert s.lighthouse.current == held
    assert issued(s.wait(7.0, alive=("a:1", "b:1"))) == [["a:1", "b:1"]]
    cur = s.lighthouse.current
    assert cur is not None
    assert cur.id % 16 == 1
    assert cur.id > held.id
    assert [q.id for q in cur.follows] == [held.id]


@pytest.mark.parametrize("size", range(1, 8))
def test_a_standby_issues_nothing_until_a_majority_of_the_last_quorums_members_has_moved_to_it(size: int) -> None:
    """The words of the issue. A newcomer is not one of them, an exact half is no majority, and no lease makes it one."""
    members = [f"{chr(97 + i)}:1" for i in range(size)]
    held = elsewhere(*members, id=OF_FIRST)
    s = standby()
    s.bring("new:1", None, State())
    majority = size // 2 + 1
    for moved in range(1, majority):
        s.bring(members[moved - 1], held)
        assert issued(s.wait(150.0, alive=("new:1", *members[:moved]))) == []
    effects = s.hello(members[majority - 1], quorum=held, state=T)
    effects += s.join(members[majority - 1], T, JoinReason.REJOINED)
    effects += s.wait(7.0, alive=("new:1", *members[:majority]))
    assert issued(effects) == [[*members[:majority], "new:1"]]


def test_members_that_run_on_are_led_into_a_quorum_of_its_own_without_new_process_groups() -> None:
    held = elsewhere("a:1", "b:1", id=OF_FIRST)
    s = standby()
    for name in ("a:1", "b:1"):
        s.hello(name, quorum=held, state=State(5, held.id), runs_on=True, granted_through=9)
    for name in ("a:1", "b:1"):
        effects = s.join(name, State(9, held.id))
    assert issued(effects) == [["a:1", "b:1"]]
    assert of(Issue, effects)[0].quorum.config_id == held.config_id


def test_members_whose_leases_are_over_are_members() -> None:
    """All have waited for longer than their leases: who is here counts, for nobody went on without most of them."""
    held = elsewhere("a:1", "b:1", "c:1", id=OF_FIRST)
    s = standby()
    for name in ("a:1", "b:1"):
        s.hello(name, quorum=held, state=T, lease_left=0.0)
        s.join(name, T, JoinReason.REJOINED)
    assert issued(s.wait(7.0, alive=("a:1", "b:1"))) == [["a:1", "b:1"]]


def test_a_member_that_has_not_come_over_is_given_time_to() -> None:
    """However long the standby has been waiting: its silence begins when there is something to come to."""
    s = standby()
    s.wait(500.0)
    held = elsewhere("a:1", "b:1", "c:1", id=OF_FIRST)
    s.bring("a:1", held)
    s.bring("b:1", held)
    assert issued(s.wait(3.0, alive=("a:1", "b:1"))) == []
    assert s.bring("c:1", held) == [["a:1", "b:1", "c:1"]]


def test_who_has_gone_again_is_not_here() -> None:
    held = elsewhere("a:1", "b:1", "c:1", id=OF_FIRST)
    s = standby()
    s.bring("a:1", held)
    s.close("a:1")
    s.bring("b:1", held)
    assert s.lighthouse.current is None


def test_who_waits_is_told_that_the_others_may_be_elsewhere_and_what_to_do() -> None:
    s = standby()
    s.bring("a:1", elsewhere("a:1", "b:1", "c:1", id=OF_FIRST))
    (wait,) = of(SendWaits, s.wait(3.0, alive=("a:1",)))
    assert wait.elsewhere
    assert "until more of b:1, c:1 come over" in wait.reason
    assert "start the job again" in wait.reason


def test_whoever_waits_at_a_standby_for_the_job_to_begin_is_told_that_it_may_be_elsewhere() -> None:
    s = standby()
    s.bring("a:1", None, State())
    assert [w.elsewhere for w in of(SendWaits, s.wait(3.0, alive=("a:1",)))] == [True]


def test_what_was_written_down_and_never_sent_is_gone_on_from() -> None:
    before = first(keeps=True)
    before.start("a:1", "b:1")
    (keep,) = of(Keep, before.join_all("a:1", "b:1", state=before.committed()))
    s = first(new_job=False, restarted=True, legacy=keep.legacy, unix=2e6)
    held = keep.legacy.open[0]
    s.bring("a:1", held, before.committed())
    s.bring("b:1", held, before.committed())
    assert s.lighthouse.current is not None
    assert [q.id for q in s.lighthouse.current.follows][:2] == [held.id, keep.legacy.quorum.id]


def test_who_only_healed_waits_for_those_that_held_the_state_and_is_told_that_no_lease_ends_that() -> None:
    """Found by tests/sim, seed 7353535835992. Most are here, and have nothing to go on from: a may have committed."""
    held = quorum(member("a:1", T), member("b:1"), member("c:1"), id=OF_FIRST)
    s = standby()
    s.bring("b:1", held, State())
    s.bring("c:1", held, State())
    assert issued(s.wait(500.0, alive=("b:1", "c:1"))) == []
    assert "a:1 may still commit in it" in s.lighthouse.undecided
    assert "the end of their lease proves nothing here" in s.lighthouse.undecided
    assert "start the job again, with new lighthouses" in s.lighthouse.undecided
    assert issued(s.last_word("a:1", held)) == [["b:1", "c:1"]]


# --- halves ----------------------------------------------------------------------------------------------------------


def test_of_two_halves_only_the_one_at_the_lighthouse_that_issued_it_goes_on() -> None:
    """Both would wait for the lease of the other half, and after it both would go on."""
    here, there = first(), standby()
    held = here.start("a:1", "b:1")
    here.close("b:1")
    there.bring("b:1", held, State())
    here.join("a:1")
    assert issued(here.wait(7.0, alive=("a:1",))) == [["a:1"]]
    assert issued(there.wait(500.0, alive=("b:1",))) == []


def test_a_lighthouse_that_has_forgotten_what_it_issued_breaks_no_tie() -> None:
    held = elsewhere("a:1", "b:1", id=16 << 30)  # of the first lighthouse, long ago
    s = first(new_job=False, restarted=True)
    s.bring("a:1", held)
    assert issued(s.wait(500.0, alive=("a:1",))) == []


def test_what_it_has_written_down_it_has_not_forgotten() -> None:
    before = first(keeps=True)
    before.hello("a:1")
    before.hello("b:1")
    before.join("a:1")
    effects = before.join("b:1")
    (keep,) = of(Keep, effects)
    s = first(new_job=False, restarted=True, legacy=keep.legacy, unix=2e6)
    s.bring("a:1", keep.legacy.quorum, State())
    assert issued(s.wait(7.0, alive=("a:1",))) == [["a:1"]]


# --- ends ------------------------------------------------------------------------------------------------------------


def test_that_all_members_have_ended_does_not_prove_that_they_had_no_successors() -> None:
    """q1={a} here. a goes on at the standby, where b joins it, and dies: b goes on there. And c comes here."""
    s = first()
    s.start("a:1")
    s.close("a:1")
    s.wait(6.0)
    s.exited("a:1")
    s.hello("c:1")
    assert issued(s.join("c:1")) == []
    assert overs(s.wait(1.0, alive=("c:1",))) == []


def test_its_last_words_tell_of_the_successors() -> None:
    s = first()
    q1 = s.start("a:1")
    s.close("a:1")
    s.last_word("a:1", elsewhere("a:1", "b:1", follows=(q1,)), "chain a")
    assert s.bring("a:2", None, State(), chain="chain a") == []
    assert issued(s.wait(500.0, alive=("a:2",))) == []
    assert "b:1" in s.lighthouse.undecided


def test_a_group_that_was_alone_goes_on_as_its_next_life() -> None:
    s = first()
    q1 = s.start("a:1")
    s.last_word("a:1", q1, "chain a")
    s.hello("x:1")
    assert issued(s.join("x:1")) == []  # not of that chain: others of it may be elsewhere
    assert s.bring("a:2", None, State(), chain="chain a", before=q1) == [["a:2", "x:1"]]


def test_two_of_three_are_killed_and_the_third_goes_on_at_a_standby() -> None:
    held = elsewhere("a:1", "b:1", "c:1", id=OF_FIRST)
    s = standby()
    s.bring("c:1", held)
    s.last_word("a:1", held)
    assert s.lighthouse.current is None
    assert issued(s.last_word("b:1", held)) == [["c:1"]]


def test_who_leaves_receives_nothing_any_more() -> None:
    s = first()
    s.start("a:1", "b:1", "c:1")
    s.leave("a:1", State())
    s.leave("b:1", State())
    assert issued(s.join("c:1")) == [["c:1"]]


def test_who_has_ended_without_ever_having_been_in_a_quorum_tells_of_none() -> None:
    s = first()
    s.start("a:1", "b:1")
    assert notes(s.last_word("x:1", None)) == []
    assert names(s) == ["a:1", "b:1"]


def test_last_words_say_that_an_older_quorum_was_left() -> None:
    """q1={a, b, c} and q2={a, b, x}: a and b had received q2, so nobody goes on over q1, wherever c is."""
    q1 = elsewhere("a:1", "b:1", "c:1", id=OF_FIRST)
    q2 = elsewhere("a:1", "b:1", "x:1", id=OF_FIRST + 16, follows=(q1,))
    s = standby()
    s.bring("x:1", q2)
    s.last_word("a:1", q2)
    assert s.lighthouse.current is None
    assert issued(s.last_word("b:1", q2)) == [["x:1"]]


def test_they_say_so_later_too() -> None:
    """The same, at the lighthouse that issued both."""
    s = first()
    s.start("a:1", "b:1", "c:1")
    s.close("c:1")
    s.hello("x:1")
    s.join_all("x:1", "a:1", "b:1")
    q2 = s.wait(7.0, alive=("a:1", "b:1", "x:1")) and s.lighthouse.current
    assert names(s) == ["a:1", "b:1", "x:1"]
    s.join("x:1", State(), JoinReason.FAILED)
    assert issued(s.last_word("a:1", q2)) == []
    assert issued(s.last_word("b:1", q2)) == [["x:1"]]


def test_who_leaves_is_not_counted_any_more() -> None:
    """q1={a, b, c} and q2 of all. Of q1 a alone had received q2, and c had not; nobody hears of them any more. When b
    leaves, a is half of those that count, at the lighthouse that issued q1: so that q1 binds nobody."""
    s = first()
    s.start("a:1", "b:1", "c:1")
    for name in ("d:1", "e:1", "f:1"):
        s.hello(name)
    s.join_all("d:1", "e:1", "f:1", "a:1", "b:1", "c:1")
    q2 = s.quorums["a:1"]
    s.feed(Progress(s.sessions["a:1"], q2.id, 0, 1))
    s.close("a:1")
    s.close("c:1")
    s.wait(6.0, alive=("b:1", "d:1", "e:1", "f:1"))
    for name in ("d:1", "e:1", "f:1"):
        s.join(name, State(), JoinReason.FAILED)
    assert issued(s.leave("b:1", State())) == [["d:1", "e:1", "f:1"]]


def test_a_member_that_never_was_here_is_not_waited_for_when_it_has_ended() -> None:
    held = elsewhere("a:1", "b:1", "c:1", id=OF_FIRST)
    s = standby()
    s.bring("a:1", held)
    s.bring("b:1", held)
    assert issued(s.last_word("c:1", held)) == [["a:1", "b:1"]]


def test_what_the_stream_of_one_that_has_ended_still_carries_has_no_meaning() -> None:
    s = first()
    s.hello("a:1", life=Life())  # which process it is was not said
    s.last_word("a:1", None)
    assert issued(s.join("a:1")) == []


def test_a_member_that_died_here_without_last_words_is_proof_enough_for_a_new_lineage() -> None:
    """a alone holds the newest state. Most members are here, and its address refuses connections."""
    s = first()
    s.start("a:1", state=T)
    s.hello("b:1")
    s.hello("c:1")
    s.join_all("b:1", "c:1", state=State(3, 2))
    s.join("a:1", s.committed())
    assert names(s) == ["a:1", "b:1", "c:1"]
    s.feed(Progress(s.sessions["a:1"], s.committed().committed_in, 6, 1))
    s.join_all("b:1", "c:1", state=State(3, 2))
    effects = s.kill("a:1")
    assert issued(effects) == [["b:1", "c:1"]]
    assert "new_lineage" in notes(effects)


def test_who_leaves_while_its_answer_is_under_way_has_not_received_it() -> None:
    """Else b would go on here alone, as half of q2, with q1 closed by a; and c alone at the standby, as half of q1."""
    here, there = first(new_job=False), standby()
    q1 = there.take_over("a:1", "b:1", "c:1")
    for name in ("a:1", "b:1", "c:1"):
        here.bring(name, q1, State(4, 3))
    here.wait(0.5, alive=("a:1", "b:1", "c:1"))
    q2 = here.lighthouse.current
    assert q2 is not None
    assert q2.id % 16 == 0
    here.leave("a:1", State(4, 3))  # it has asked, and q2 has not arrived
    here.close("c:1")  # nor here
    there.last_word("a:1", q1)
    there.bring("c:1", q1)
    assert issued(there.wait(7.0, alive=("c:1",))) == [["c:1"]]
    assert issued(here.join("b:1", T, JoinReason.FAILED)) == []
    assert issued(here.wait(500.0, alive=("b:1",))) == []
    assert "until more of c:1 come over" in here.lighthouse.undecided


# --- what another lighthouse has issued ------------------------------------------------------------------------------


def test_a_lighthouse_learns_that_another_one_has_issued_a_newer_quorum() -> None:
    """a and b alone are most of q1, but not of q2 of another lighthouse, in which c, d and e go on."""
    s = first()
    q1 = s.start("a:1", "b:1", "c:1")
    newer = elsewhere("a:1", "b:1", "c:1", "d:1", "e:1", follows=(q1,))
    for name in ("a:1", "b:1", "c:1"):
        s.close(name)
    s.wait(6.0)
    assert s.bring("a:1", newer) == []
    assert s.bring("b:1", newer) == []
    assert issued(s.wait(50.0, alive=("a:1", "b:1"))) == []
    assert "Not enough members" in s.lighthouse.undecided
    s.bring("d:1", newer)  # three of five
    s.wait(6.0, alive=("a:1", "b:1", "d:1"))
    assert names(s) == ["a:1", "b:1", "d:1"]
    assert s.lighthouse.current is not None
    assert s.lighthouse.current.id > newer.id


def test_who_holds_an_older_one_is_told_that_it_is_over() -> None:
    s = first()
    q1 = s.start("a:1", "b:1", "c:1")
    s.hello("d:1")
    s.close("b:1")
    s.close("c:1")
    effects = s.hello("c:1", quorum=elsewhere("c:1", "d:1", follows=(q1,)))
    assert s.lighthouse.current is not None
    assert s.lighthouse.current.id == OF_STANDBY
    # All that have a session and were in one; b is away.
    assert overs(effects) == [((s.sessions["a:1"],), ()), ((s.sessions["c:1"],), ())]
    assert overs(s.hello("b:1")) == [((s.sessions["b:1"],), ())]


def test_who_holds_the_newer_one_rebuilds_with_those_that_do_not() -> None:
    s = first()
    q1 = s.start("a:1", "b:1", "c:1")
    newer = elsewhere("a:1", "b:1", "c:1", follows=(q1,))
    s.hello("c:1", quorum=newer)
    s.join_all("a:1", "b:1", "c:1", state=State())
    assert s.lighthouse.current is not None
    assert s.lighthouse.current.id > newer.id
    assert s.lighthouse.current.config_id == s.lighthouse.current.id


def test_an_older_one_that_nobody_here_knew_must_be_followed_too() -> None:
    """Here q={a, b}, and then d comes with one of b, d and e, whoever issued it."""
    s = first()
    s.start("a:1", "b:1")
    older = elsewhere("b:1", "d:1", "e:1", id=33)
    assert overs(s.hello("d:1", quorum=older)) == [((s.sessions["d:1"],), ())]
    assert names(s) == ["a:1", "b:1"]
    s.kill("a:1")
    assert issued(s.join("b:1", State(), JoinReason.FAILED)) == []
    assert "members of quorum 33 are" in s.lighthouse.undecided
    assert issued(s.join("d:1", T, JoinReason.REJOINED)) == [["b:1", "d:1"]]


def test_what_was_issued_and_not_received_must_be_followed_and_so_must_the_one_before() -> None:
    """The first lighthouse issues q2 after q1={a, b, c}, and only d receives it. At the standby d and a are most of q2,
    and of q1 only a is there: b and c may go on over it anywhere."""
    q1 = elsewhere("a:1", "b:1", "c:1", id=OF_FIRST)
    q2 = elsewhere("a:1", "b:1", "d:1", id=OF_FIRST + 16, follows=(q1,))
    s = standby()
    s.bring("d:1", q2)
    s.bring("a:1", q1)
    assert issued(s.wait(50.0, alive=("a:1", "d:1"))) == []
    s.bring("b:1", q1)
    s.wait(6.0, alive=("a:1", "b:1", "d:1"))
    assert names(s) == ["a:1", "b:1", "d:1"]


def test_one_member_that_has_gone_on_does_not_close_a_quorum() -> None:
    """q1={a, b, c} and q2={a, b, x}; a has received q2. What b and c know may be followed elsewhere."""
    q1 = elsewhere("a:1", "b:1", "c:1", id=OF_FIRST)
    q2 = elsewhere("a:1", "b:1", "x:1", id=OF_FIRST + 16, follows=(q1,))
    s = standby()
    s.bring("a:1", q2)
    s.bring("x:1", q2)
    assert issued(s.wait(50.0, alive=("a:1", "x:1"))) == []
    s.bring("c:1", q1)
    s.wait(6.0, alive=("a:1", "c:1", "x:1"))
    assert names(s) == ["a:1", "c:1", "x:1"]


def test_what_one_lighthouse_left_open_is_open_at_the_next() -> None:
    """q1={a, b, c} and q2={a, b, d} of the first lighthouse; b and c never receive q2, and may go on over q1 anywhere. So
    a and d, most of q2, must not, where only they are."""
    one, other = first(), standby()
    q1 = one.start("a:1", "b:1", "c:1")
    one.close("c:1")
    one.hello("d:1")
    for name in ("a:1", "b:1", "d:1"):
        one.join(name)
    one.wait(7.0, alive=("a:1", "b:1", "d:1"))
    assert names(one) == ["a:1", "b:1", "d:1"]
    for name in ("a:1", "d:1"):
        other.bring(name, one.lighthouse.current, State())
    assert issued(other.wait(50.0, alive=("a:1", "d:1"))) == []
    assert f"members of quorum {q1.id} are" in other.lighthouse.undecided


def test_who_leaves_before_it_receives_the_newest_has_not_left_the_one_before() -> None:
    """q2={a, b, c, d} reaches d alone: a and c are killed, and b's leave has crossed it. All that a, b and c had received
    is q1, so that their next lives may go on over it at the standby, and d must not here."""
    here, there = first(), standby()
    q1 = here.start("a:1", "b:1", "c:1")
    here.hello("d:1")
    here.join_all("d:1", "a:1", "b:1", "c:1")
    assert names(here) == ["a:1", "b:1", "c:1", "d:1"]
    here.leave("b:1", State())
    for s in (here, there):
        for name in "abc":
            s.last_word(f"{name}:1", q1, f"chain {name}")
    assert issued(here.join("d:1", State(), JoinReason.FAILED)) == []
    there.bring("a:2", None, State(), chain="chain a", before=q1)
    assert there.bring("c:2", None, State(), chain="chain c", before=q1) == [["a:2", "c:2"]]
