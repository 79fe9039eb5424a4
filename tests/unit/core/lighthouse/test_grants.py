"""Grants over many steps: the lighthouse hands them out, a group runs on in them (R5, R7, R11, R16)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.core.scene import OURS, Scene, issued, member, of, quorum
from torchft_x.core.group.machine import Group, GroupConfig
from torchft_x.core.messages.common import Tick
from torchft_x.core.messages.group import (
    AnswerQuorum,
    Ask,
    CallGone,
    GrantArrived,
    GroupEffect,
    QuorumArrived,
    QuorumRevoked,
    SendJoin,
    SendProgress,
    SessionDown,
    SessionUp,
    Vote,
)
from torchft_x.core.messages.lighthouse import Extend, Join, Progress, RevokeQuorum
from torchft_x.core.types import JoinReason, Quorum, State


class Lights(Scene):
    """A lighthouse whose members take grants. A step takes 0.1 s, a grant is worth 1 s."""

    def hello(self, replica_id: str, **fields: Any) -> list[Any]:
        return super().hello(replica_id, **{"runs_on": True, **fields})

    def boundary(self, replica_id: str, step: int, **fields: Any) -> list[Any]:
        cur = self.lighthouse.current
        here = member(replica_id, State(step, cur.id), **fields)
        return self.feed(Join(self.sessions[replica_id], here, number=step, step_seconds=0.1))

    def progress(self, replica_id: str, step: int) -> list[Any]:
        cur = self.lighthouse.current
        return self.feed(Progress(self.sessions[replica_id], cur.id, step, step, 0.1))

    def granted(self, effects: list[Any]) -> list[int]:
        return [e.granted_through for e in of(Extend, effects)]


class TestLighthouse:
    def test_a_boundary_with_nothing_pending_is_answered_by_more(self) -> None:
        s = Lights.started("a:1", "b:1")
        (extend,) = of(Extend, s.boundary("a:1", 1))
        assert (extend.granted_through, extend.number, extend.lease) == (11, 1, 120.0)
        assert s.granted(s.boundary("b:1", 1)) == [11]
        assert s.lighthouse.current.number == 1  # still the same quorum

    def test_at_step_0_all_carry_but_most_have_healed(self) -> None:
        """They say so at the next boundary, where another has been granted more already."""
        s = Lights.started("a:1", "b:1")
        s.boundary("a:1", 1)
        cur = s.lighthouse.current
        here = member("b:1", State(1, cur.id), shrink_only=True)
        assert s.granted(s.feed(Join(s.sessions["b:1"], here, JoinReason.HEALED, number=1))) == [11]

    def test_the_status_knows_about_steps_that_were_not_asked_for(self) -> None:
        s = Lights.started("a:1", "b:1")
        s.boundary("a:1", 1)
        s.progress("a:1", 6)
        told = s.lighthouse.status(s.now)["quorum"]
        assert (told["step"], told["granted_through"]) == (6, 16)
        s.kill("a:1")
        s.join("b:1", State(6, told["id"]), JoinReason.FAILED)
        assert s.lighthouse.status(s.now)["quorum"]["step"] == 6

    def test_one_number_for_all(self) -> None:
        s = Lights.started("a:1", "b:1")
        s.boundary("a:1", 1)
        assert s.granted(s.progress("a:1", 6)) == [16]
        assert s.granted(s.boundary("b:1", 1)) == [16]

    def test_R5_a_newcomer_stops_the_growth_and_all_meet_at_one_step(self) -> None:
        s = Lights.started("a:1", "b:1")
        s.boundary("a:1", 1)
        s.arrive("c:1")
        assert s.granted(s.progress("a:1", 6)) == [11]  # the answer comes, the number stays
        assert s.granted(s.boundary("b:1", 1)) == [11]  # what others were granted
        assert s.granted(s.boundary("a:1", 11)) == []
        assert issued(s.boundary("b:1", 11)) == [["a:1", "b:1", "c:1"]]

    def test_a_healer_keeps_it_at_one_step(self) -> None:
        s = Lights.started("a:1", "b:1")
        s.arrive("c:1")
        s.join("a:1", s.committed())
        assert issued(s.join("b:1", s.committed())) == [["a:1", "b:1", "c:1"]]
        state = s.committed()
        assert state.step == 2
        for name in ("a:1", "b:1"):
            assert s.granted(s.boundary(name, 2)) == []
        cur = s.lighthouse.current
        assert cur is not None
        assert issued(s.feed(Join(s.sessions["c:1"], member("c:1", state), JoinReason.HEALED, number=3))) == [
            ["a:1", "b:1", "c:1"]
        ]
        assert s.granted(s.boundary("a:1", 3)) == [13]

    def test_who_has_healed_to_the_first_weights_takes_the_grant(self) -> None:
        """With init_sync all but one heal in the first quorum, at step 0 like the others. One ran on in the grant
        while the healed one waited at the lighthouse: a time-out in every fresh job."""
        s = Lights()
        s.start("a:1", "b:1")
        assert s.granted(s.boundary("a:1", 1)) == [11]
        cur = s.lighthouse.current
        assert cur is not None
        healed = Join(s.sessions["b:1"], member("b:1", State(1, cur.id)), JoinReason.HEALED, (), None, 1, 0.1)
        assert s.granted(s.feed(healed)) == [11]

    def test_who_drops_a_step_inside_a_grant_releases_the_others(self) -> None:
        """A veto breaks nothing, so this member only says that it is at a boundary. The others ran on inside the grant
        and waited for it in the next step until a time-out."""
        s = Lights()
        first = s.start("a:1", "b:1")
        s.boundary("a:1", 1)
        s.boundary("b:1", 1)
        effects = s.boundary("b:1", 5, commit_failures=1)
        assert [e.quorum_id for e in of(RevokeQuorum, effects)] == [first.id]

    def test_a_peers_client_keeps_it_at_one_step(self) -> None:
        s = Lights(join_timeout=0.0)
        s.arrive("a:1")
        s.unary("p:1", 1, step=1)
        assert issued(s.join("a:1", s.committed())) == [["a:1", "p:1"]]
        assert s.granted(s.boundary("a:1", 2)) == []

    def test_after_a_loss_nothing_is_granted(self) -> None:
        s = Lights.started("a:1", "b:1", "c:1")
        s.boundary("a:1", 1)
        s.exited("c:1")
        assert s.granted(s.progress("a:1", 5)) == []
        assert s.granted(s.boundary("b:1", 1)) == []

    def test_after_a_loss_grants_are_small_for_a_while(self) -> None:
        """The lost group is back soon, and waits for the end of a grant."""
        s = Lights.started("a:1", "b:1", "c:1", return_seconds=0.35, return_within=10.0)
        assert s.granted(s.boundary("a:1", 1)) == [11]
        s.exited("c:1")
        s.join("a:1", s.committed())
        assert issued(s.join("b:1", s.committed())) == [["a:1", "b:1"]]
        assert s.granted(s.boundary("a:1", 2)) == [5]
        s.now += 9.9
        assert s.granted(s.progress("a:1", 100)) == [103]
        s.now = 10.0
        assert s.granted(s.progress("a:1", 102)) == [112]

    def test_a_large_quorum_asks_less_often_after_a_loss(self) -> None:
        names = [f"g{n:03}:1" for n in range(601)]
        s = Lights.started(*names, return_seconds=0.1, grant_seconds=5.0)
        s.exited(names[0])
        for name in names[1:]:
            effects = s.join(name, s.committed())
        assert len(issued(effects)[0]) == 600
        assert s.granted(s.boundary(names[1], 2)) == [5]

    def test_a_grant_is_never_larger_after_a_loss(self) -> None:
        s = Lights.started("a:1", "b:1", return_seconds=2.0)
        s.exited("b:1")
        assert issued(s.join("a:1", s.committed())) == [["a:1"]]
        assert s.granted(s.boundary("a:1", 2)) == [12]

    def test_whoever_leaves_inside_a_grant_is_waited_for_by_nobody(self) -> None:
        """Its place in the process group is empty: the others must hear it at once."""
        s = Lights()
        first = s.start("a:1", "b:1")
        s.boundary("a:1", 1)
        effects = s.leave("b:1", State(3, first.id))
        assert [e.quorum_id for e in effects if type(e).__name__ == "RevokeQuorum"] == [first.id]

    def test_a_member_that_takes_no_grants_gets_quorums_as_ever(self) -> None:
        s = Lights.started("a:1")
        assert issued(s.join("a:1", s.committed())) == [["a:1"]]

    def test_a_member_that_takes_no_grants_keeps_all_at_one_step(self) -> None:
        """It would wait at the next boundary for those that wait for it in a collective."""
        s = Lights()
        s.hello("a:1")
        s.hello("b:1", runs_on=False)
        s.join("a:1")
        s.join("b:1")
        assert s.granted(s.boundary("a:1", 1)) == []
        assert issued(s.join("b:1", s.committed())) == [["a:1", "b:1"]]

    def test_R16_whoever_stands_before_what_turns_out_to_be_granted_is_let_on(self) -> None:
        """It came back first and asks; the other had begun a step in between and waits for it in a collective."""
        s = Lights()
        first = s.start("a:1", "b:1")
        s.close("a:1")
        s.close("b:1")
        back = {"quorum": first, "lease_left": 50.0, "state": State(30, first.id)}
        s.hello("a:1", granted_through=5, **back)
        s.arrive("c:1")
        assert s.granted(s.boundary("a:1", 30)) == []
        assert s.granted(s.hello("b:1", granted_through=31, **back)) == [31]
        assert issued(s.boundary("a:1", 31)) == []
        assert issued(s.boundary("b:1", 31)) == [["a:1", "b:1", "c:1"]]

    def test_the_same_with_a_fresh_lighthouse(self) -> None:
        old = quorum(member("a:1"), member("b:1"), id=5, granted_through=1)
        s = Lights()
        back = {"quorum": old, "lease_left": 50.0, "state": State(30, 5)}
        s.hello("a:1", granted_through=5, **back)
        here = member("a:1", State(30, 5))
        assert s.granted(s.feed(Join(s.sessions["a:1"], here, number=1, step_seconds=0.1))) == []
        assert s.granted(s.hello("b:1", granted_through=31, **back)) == [31]

    @pytest.mark.parametrize(
        ("step", "ran_in", "granted", "reported_in", "counts"),
        [
            (30, 0, 1, 0, 30),  # it has run past the grant while it had no session
            (3, 0, 20, 0, 20),  # a grant that was on its way to us when the session broke, or of an earlier life
            (30, -1, 1, 0, 5),  # a state that was committed in another quorum says nothing about this one
            (30, 0, 20, -1, 5),  # nor does a grant in another quorum
            (3, 0, 4, 0, 5),  # it never shrinks
        ],
    )
    def test_R16_what_a_member_says_about_its_grant_counts_in_this_quorum(
        self, step: int, ran_in: int, granted: int, reported_in: int, counts: int
    ) -> None:
        s = Lights(grant_steps=4)
        first = s.start("a:1", "b:1")
        assert s.granted(s.boundary("b:1", 1)) == [5]
        s.arrive("c:1")  # pending from here on, so that nothing grows by itself
        s.close("a:1")
        told = replace(first, id=first.id + reported_in)
        s.hello("a:1", state=State(step, first.id + ran_in), quorum=told, granted_through=granted)
        assert s.lighthouse._tenure.granted_through == counts

    def test_R16_who_stands_before_what_another_one_ran_runs_on_and_who_stands_at_it_waits(self) -> None:
        s = Lights(grant_steps=4)
        first = s.start("a:1", "b:1", "c:1")
        s.boundary("b:1", 1)  # granted through 5
        s.arrive("d:1")
        assert s.granted(s.boundary("b:1", 5)) == s.granted(s.boundary("c:1", 30)) == []
        s.close("a:1")
        effects = s.hello("a:1", state=State(30, first.id), quorum=first, granted_through=1)
        assert [(e.session, e.granted_through) for e in of(Extend, effects)] == [(s.sessions["b:1"], 30)]
        assert s.lighthouse.status(s.now)["asking"] == ["c:1", "d:1"]
        assert s.lighthouse.status(s.now)["missing"] == ["a:1", "b:1"]

    def test_an_error_after_the_commit_is_not_answered_by_a_grant(self) -> None:
        s = Lights()
        first = s.start("a:1", "b:1")
        failed = Join(
            s.sessions["a:1"], member("a:1", State(1, first.id)), JoinReason.FAILED, number=1, step_seconds=0.1
        )
        effects = s.feed(failed)
        assert s.granted(effects) == []
        assert [e.sessions for e in of(RevokeQuorum, effects)] == [(s.sessions["b:1"],)]

    @pytest.mark.parametrize("quorum_id", [-1, 1])
    def test_a_request_about_another_quorum_is_not_answered(self, quorum_id: int) -> None:
        s = Lights()
        first = s.start("a:1", "b:1")
        assert s.feed(Progress(s.sessions["a:1"], first.id + quorum_id, 1, 1, 0.1)) == []

    def test_who_is_no_member_gets_no_grant(self) -> None:
        s = Lights()
        first = s.start("a:1", "b:1")
        s.hello("c:1", quorum=None)
        assert s.granted(s.feed(Progress(s.sessions["c:1"], first.id, 1, 1, 0.1))) == []
        claims = Join(s.sessions["c:1"], member("c:1", State(1, first.id)), number=1, step_seconds=0.1)
        assert s.granted(s.feed(claims)) == []

    def test_who_has_committed_nothing_in_this_quorum_stands_at_no_boundary_of_it(self) -> None:
        s = Lights.started("a:1", "b:1")
        stays = Join(s.sessions["a:1"], member("a:1", State()), number=1, step_seconds=0.1)
        assert s.granted(s.feed(stays)) == []

    @pytest.mark.parametrize(("seconds", "steps"), [(0.0, 1), (0.3, 3), (1.0, 1), (5.0, 1)])
    def test_a_grant_is_worth_about_a_second_and_a_step_at_least(self, seconds: float, steps: int) -> None:
        s = Lights()
        first = s.start("a:1", "b:1")
        asked = Join(s.sessions["a:1"], member("a:1", State(1, first.id)), number=1, step_seconds=seconds)
        assert s.granted(s.feed(asked)) == [1 + steps]

    def test_a_grant_renews_the_lease(self) -> None:
        s = Lights.started("a:1", "b:1", lease=30.0, lease_margin=1.0, boot_id="another host")
        s.now = 20.0
        s.boundary("a:1", 1)
        for name in ("a:1", "b:1"):
            s.kill(name)
        over = {m["replica_id"]: m["over"] for m in s.lighthouse.status(31.0)["members"]}
        assert over == {"a:1": False, "b:1": True}
        assert [m["over"] for m in s.lighthouse.status(51.0)["members"]] == [True, True]

    def test_a_fresh_lighthouse_takes_the_grant_over(self) -> None:
        old = quorum(member("a:1"), member("b:1"), id=5, granted_through=1)
        s = Lights()
        s.hello("a:1", quorum=old, granted_through=20, state=State(12, 5), lease_left=50.0)
        s.hello("b:1", quorum=old, granted_through=15, state=State(12, 5), lease_left=50.0)
        s.arrive("c:1")  # pending from the start
        assert s.granted(s.boundary("b:1", 15)) == [20]

    def test_trouble_is_not_answered_by_a_grant(self) -> None:
        for fields in ({"torn": True}, {"commit_failures": 1}):
            s = Lights.started("a:1", "b:1")
            assert s.granted(s.boundary("a:1", 1, **fields)) == [], fields


class Stage:
    """A group that runs on."""

    def __init__(self, world_size: int = 1) -> None:
        config = GroupConfig(
            replica_id="g:1", address="", store_address="", world_size=world_size, library=OURS, runs_on=True
        )
        self.now = 0.0
        self.group = Group(config, 0.0)
        self.calls = 0
        self.ranks = world_size
        self.feed(SessionUp())
        for rank in range(world_size):
            self.ask(rank)
        self.feed(QuorumArrived(self.quorum()))

    def quorum(self, **fields: Any) -> Quorum:
        return quorum(member("g:1"), member("h:1"), id=7, **{"granted_through": 1, **fields})

    def feed(self, event: Any) -> list[GroupEffect]:
        return self.group.handle(event, self.now)

    def call(self) -> int:
        self.calls += 1
        return self.calls

    def ask(self, rank: int = 0, step: int = 0, **fields: Any) -> list[GroupEffect]:
        return self.feed(Ask(self.call(), rank, State(step, 7 if step else 0), step_seconds=0.1, **fields))

    def commit(self, step: int) -> None:
        for rank in range(self.ranks):
            effects = self.feed(Vote(self.call(), rank, step, 7, True))
        assert effects

    def grant(self, through: int, number: int) -> list[GroupEffect]:
        return self.feed(GrantArrived(7, through, 120.0, number))

    def granted(self, through: int) -> Stage:
        """Has committed one step, and been granted more."""
        self.commit(0)
        for rank in range(self.ranks):
            effects = self.ask(rank, 1)
        (join,) = of(SendJoin, effects)
        assert of(AnswerQuorum, self.grant(through, join.number))
        return self


class TestGroup:
    def test_a_grant_answers_a_join_that_only_asked_for_more(self) -> None:
        s = Stage()
        s.commit(0)
        (join,) = of(SendJoin, s.ask(step=1))
        assert join.step_seconds == 0.1
        (answer,) = of(AnswerQuorum, s.grant(11, join.number))
        assert answer.base == State(1, 7)
        assert s.group.waiting == ""

    def test_R11_a_grant_that_allows_no_further_step_answers_nobody(self) -> None:
        s = Stage()
        s.commit(0)
        (join,) = of(SendJoin, s.ask(step=1))
        effects = s.grant(1, join.number)
        assert of(AnswerQuorum, effects) == []
        assert of(SendJoin, effects)  # so that somebody answers it

    def test_R3_a_grant_that_answers_an_earlier_request_does_not_answer_the_join(self) -> None:
        """I1: a grant that was asked for earlier arrived after the join and was taken for its answer. At the
        lighthouse the join stood, and was answered by a quorum after this group had gone on."""
        s = Stage().granted(3)
        s.commit(1)
        (progress,) = of(SendProgress, s.ask(step=2))
        s.commit(2)
        (join,) = of(SendJoin, s.ask(step=3))
        assert s.grant(20, progress.number) == []
        assert s.group.waiting
        (answer,) = of(AnswerQuorum, s.grant(20, join.number))
        assert answer.base == State(3, 7)

    def test_inside_the_grant_a_step_costs_no_message(self) -> None:
        s = Stage().granted(11)
        for step in range(1, 5):
            s.commit(step)
            assert s.ask(step=step + 1) == [AnswerQuorum((s.calls,), s.quorum(), 120.0, State(step + 1, 7))]

    def test_more_is_asked_for_ahead_of_need_and_once(self) -> None:
        s = Stage().granted(11)
        asked = []
        for step in range(1, 9):
            s.commit(step)
            asked += of(SendProgress, s.ask(step=step + 1))
        (progress,) = asked
        assert progress.step == 6
        s.now = 5.0
        s.grant(21, progress.number)
        s.commit(9)
        assert of(AnswerQuorum, s.ask(step=10))
        assert s.group.lease_until == 120.0  # counted from when it was asked for, not from when it came

    def test_at_the_end_of_the_grant_it_joins(self) -> None:
        s = Stage().granted(2)
        s.commit(1)
        (join,) = of(SendJoin, s.ask(step=2))
        assert join.reason is JoinReason.BOUNDARY

    def test_also_when_the_lease_has_ended_between_them(self) -> None:
        """The step has begun; whether it may commit is asked at the commit (R13)."""
        s = Stage(2).granted(11)
        s.commit(1)
        assert of(AnswerQuorum, s.ask(0, 2))
        s.now = 120.1
        assert of(AnswerQuorum, s.ask(1, 2))

    def test_also_a_rank_that_asks_again_when_the_lease_has_ended(self) -> None:
        s = Stage(2).granted(2)
        s.commit(1)
        s.ask(0, 2)
        s.ask(1, 2)
        s.feed(CallGone(s.calls))
        assert of(AnswerQuorum, s.feed(SessionDown("the lighthouse is gone")))  # rank 0 runs on
        s.now = 120.1
        assert of(AnswerQuorum, s.ask(1, 2))

    def test_but_not_in_a_quorum_that_is_over(self) -> None:
        s = Stage(2).granted(11)
        s.commit(1)
        assert of(AnswerQuorum, s.ask(0, 2))
        s.feed(QuorumRevoked(7, ("h:1",), "h:1 is lost"))
        assert of(AnswerQuorum, s.ask(1, 2)) == []

    def test_R4_nor_when_the_group_has_asked_for_the_next(self) -> None:
        s = Stage(2).granted(11)
        s.commit(1)
        for reason in (JoinReason.BOUNDARY, JoinReason.FAILED):
            for rank in (0, 1):
                effects = s.ask(rank, 2, reason=reason)
        assert of(SendJoin, effects)
        assert of(AnswerQuorum, s.ask(0, 2)) == []

    def test_what_was_asked_for_on_an_older_session_is_void(self) -> None:
        s = Stage().granted(11)
        sent: list[GroupEffect] = []
        for step in range(1, 8):
            s.commit(step)
            sent += s.ask(step=step + 1)
        (progress,) = of(SendProgress, sent)
        s.feed(SessionUp())  # another one, before anybody saw the end of the older
        s.grant(99, progress.number)
        for step in range(8, 11):
            s.commit(step)
            effects = s.ask(step=step + 1)
        assert of(SendJoin, effects)  # 11 was the last

    def test_a_rank_that_has_missed_a_commit_asks_the_lighthouse(self) -> None:
        s = Stage(2).granted(11)
        s.commit(1)
        assert of(AnswerQuorum, s.ask(1, 1)) == []

    def test_a_step_that_was_dropped_is_no_boundary_of_this_quorum(self) -> None:
        s = Stage()
        assert of(SendJoin, s.ask())
        assert of(AnswerQuorum, s.feed(SessionDown("the lighthouse is gone"))) == []

    def test_I2_a_rank_does_not_run_on_when_another_one_has_asked(self) -> None:
        s = Stage(2).granted(11)
        s.commit(1)
        assert s.ask(0, 2, reason=JoinReason.FAILED) == []
        (join,) = of(SendJoin, s.ask(1, 2))
        assert join.reason is JoinReason.FAILED

    def test_R7_a_quorum_in_which_somebody_heals_is_left_after_one_step(self) -> None:
        for when in ("before", "after"):
            s = Stage()
            s.commit(0)
            s.ask(step=1)
            behind = quorum(member("g:1", State(1, 7)), member("h:1"), id=8, granted_through=2)
            s.feed(QuorumArrived(behind))
            s.feed(Vote(s.call(), 0, 1, 8, True))
            effects = s.feed(SessionDown("the lighthouse is gone")) if when == "before" else []
            effects += s.feed(Ask(s.call(), 0, State(2, 8), step_seconds=0.1))
            effects += s.feed(SessionDown("the lighthouse is gone")) if when == "after" else []
            assert of(AnswerQuorum, effects) == []

    def test_a_grant_while_only_some_ranks_have_asked_answers_nobody(self) -> None:
        s = Stage(2).granted(11)
        sent: list[GroupEffect] = []
        for step in range(1, 8):
            s.commit(step)
            sent += s.ask(0, step + 1) + s.ask(1, step + 1)
        (progress,) = of(SendProgress, sent)
        assert s.ask(0, 8, reason=JoinReason.FAILED) == []
        assert s.grant(21, progress.number) == []

    @pytest.mark.parametrize("why", ["no session", "asking"])
    def test_more_is_asked_for_on_a_session_and_not_while_the_group_asks_anyway(self, why: str) -> None:
        s = Stage().granted(11)
        s.now = 100.0
        if why == "no session":
            s.feed(SessionDown("cut"))
        else:
            s.ask(step=1, reason=JoinReason.FAILED)
        assert s.feed(Tick()) == []

    def test_R16_the_next_lighthouse_hears_how_far_it_has_run(self) -> None:
        s = Stage()
        assert s.group.hello(s.now).granted_through == 1
        s.granted(30)
        assert s.group.hello(s.now).granted_through == 30
        s.feed(SessionDown("the lighthouse is gone"))
        for step in range(1, 41):
            s.commit(step)
            (answer,) = of(AnswerQuorum, s.ask(step=step + 1, keeps=True))
            assert not answer.again  # nothing has to be reduced again where the quorum stands
        assert s.group.hello(s.now).granted_through == 41 + 15  # 1.5 s of steps from where it stands

    def test_R16_it_runs_on_with_the_next_lighthouse_for_as_long_as_it_has_told_it(self) -> None:
        s = Stage().granted(4)
        s.feed(SessionDown("the lighthouse is gone"))
        s.commit(1)
        assert of(AnswerQuorum, s.ask(step=2))
        told = s.group.hello(s.now).granted_through
        s.feed(SessionUp())
        for step in range(2, told):
            s.commit(step)
            answered = of(AnswerQuorum, s.ask(step=step + 1))
            assert len(answered) == (step + 1 < told), step
        assert told == 2 + 15

    def test_R7_a_session_that_flaps_puts_the_end_of_the_grant_off_once(self) -> None:
        """Others wait for it (F4). Hellos that nobody answers don't count: the lighthouse is away, and it runs past them."""
        s = Stage().granted(4)
        s.commit(1)
        s.feed(SessionDown("the lighthouse is gone"))
        for step in (2, 3):
            assert of(AnswerQuorum, s.ask(step=step))
            s.commit(step)
            assert s.group.hello(s.now).granted_through == step + 1 + 15
        promised = 4 + 15
        for step in range(4, promised):
            s.feed(SessionUp())
            assert of(AnswerQuorum, s.ask(step=step))
            s.commit(step)
            s.feed(SessionDown("cut"))
            assert s.group.hello(s.now).granted_through == promised
        s.feed(SessionUp())
        assert of(SendJoin, s.ask(step=promised))

    def test_R16_it_promises_again_a_minute_later_and_in_the_next_quorum(self) -> None:
        s = Stage().granted(4)
        s.commit(1)
        for _ in range(2):
            assert s.group.hello(s.now).granted_through == 2 + 15
            s.feed(SessionUp())
            s.feed(SessionDown("cut"))
        s.commit(2)
        s.now += 59.0
        assert s.group.hello(s.now).granted_through == 2 + 15
        s.now += 1.0
        assert s.group.hello(s.now).granted_through == 3 + 15

    def test_R16_one_step_is_promised_while_nobody_knows_how_long_it_takes(self) -> None:
        s = Stage()
        s.commit(0)
        assert s.group.hello(s.now).granted_through == 2

    @pytest.mark.parametrize("other", ["carrier", "peer", "healer"])
    def test_nothing_is_promised_where_somebody_asks_before_each_step(self, other: str) -> None:
        s = Stage().granted(4)
        s.ask(step=1, reason=JoinReason.FAILED)
        library = "" if other == "peer" else OURS
        fellow = member("h:1", State() if other == "healer" else State(1, 7), library=library)
        s.feed(QuorumArrived(quorum(member("g:1", State(1, 7), library=OURS), fellow, id=8, granted_through=2)))
        s.feed(Vote(s.call(), 0, 1, 8, True))
        assert s.group.state == State(2, 8)
        assert (s.group.hello(s.now).granted_through > 2) == (other == "carrier")

    @pytest.mark.parametrize("why", ["asking", "over", "lease"])
    def test_nothing_is_promised_that_could_not_be_run_without_a_session(self, why: str) -> None:
        s = Stage().granted(2)
        s.commit(1)
        if why == "asking":
            assert of(SendJoin, s.ask(step=2))
        elif why == "over":
            s.feed(QuorumRevoked(7, (), "why"))
        else:
            s.now = s.group.lease_until + 0.1
        assert s.group.hello(s.now).granted_through == 2

    def test_running_on_is_no_reason_to_reduce_again(self) -> None:
        s = Stage().granted(2)
        s.commit(1)
        assert of(SendJoin, s.ask(step=2, keeps=True))
        (answer,) = of(AnswerQuorum, s.feed(SessionDown("the lighthouse is gone")))
        assert (answer.base, answer.again) == (State(2, 7), False)

    def test_a_grant_that_nobody_waits_for_any_more(self) -> None:
        s = Stage()
        s.commit(0)
        (join,) = of(SendJoin, s.ask(step=1))
        s.feed(CallGone(s.calls))
        assert s.grant(11, join.number) == []
        (answer,) = of(AnswerQuorum, s.ask(step=1))
        assert answer.base == State(1, 7)

    def test_trouble_goes_to_the_lighthouse(self) -> None:
        for fields in ({"reason": JoinReason.FAILED}, {"torn": True}, {"commit_failures": 1}):
            s = Stage().granted(11)
            s.commit(1)
            assert of(SendJoin, s.ask(step=2, **fields)), fields

    def test_without_runs_on_every_step_asks(self) -> None:
        group = Group(GroupConfig(replica_id="g:1", address="", store_address="", library=OURS), 0.0)
        group.handle(SessionUp(), 0.0)
        group.handle(Ask(1, 0, State()), 0.0)
        group.handle(QuorumArrived(quorum(member("g:1"), id=7, granted_through=50)), 0.0)
        group.handle(Vote(2, 0, 0, 7, True), 0.0)
        (join,) = of(SendJoin, group.handle(Ask(3, 0, State(1, 7)), 0.0))
        assert join.number == 0

    def test_how_long_a_step_takes_is_remembered(self) -> None:
        s = Stage().granted(11)
        s.commit(1)
        s.feed(Ask(90, 0, State(2, 7)))  # it can't say
        s.now = 100.0
        (progress,) = of(SendProgress, s.feed(Tick()))
        assert progress.step_seconds == 0.1

    def test_the_healed_and_those_that_want_no_newcomers_run_on(self) -> None:
        for fields in ({"reason": JoinReason.HEALED}, {"shrink_only": True}):
            s = Stage().granted(11)
            s.commit(1)
            assert of(AnswerQuorum, s.ask(step=2, **fields)), fields
            s = Stage()
            s.commit(0)
            (join,) = of(SendJoin, s.ask(step=1, **fields))
            assert of(AnswerQuorum, s.grant(11, join.number)), fields

    def test_R16_without_a_session_it_runs_on_until_the_lease_ends(self) -> None:
        s = Stage().granted(2)
        s.commit(1)
        assert of(SendJoin, s.ask(step=2))
        (answer,) = of(AnswerQuorum, s.feed(SessionDown("the lighthouse is gone")))
        assert answer.base == State(2, 7)
        s.commit(2)
        s.now = 120.1
        assert s.ask(step=3) == []
        (join,) = of(SendJoin, s.feed(SessionUp()))
        assert join.reason is JoinReason.REJOINED

    def test_the_lease_is_renewed_though_steps_are_slow(self) -> None:
        s = Stage().granted(11)
        s.now = 20.0
        assert s.feed(Tick()) == []
        s.now = 31.0
        (progress,) = of(SendProgress, s.feed(Tick()))
        assert s.feed(Tick()) == []  # once
        s.grant(11, progress.number)
        assert s.group.lease_until == 151.0

    def test_a_grant_that_comes_after_the_lease_is_answered_by_another_join(self) -> None:
        """L1: the lighthouse takes the join for answered."""
        s = Stage()
        s.commit(0)
        (join,) = of(SendJoin, s.ask(step=1))
        s.now = 121.0  # stopped, or cut off without either side noticing
        (again,) = of(SendJoin, s.grant(11, join.number))
        assert again.reason is JoinReason.REJOINED
        assert again.number != join.number
        assert s.grant(11, join.number) == []
        s.feed(QuorumArrived(quorum(member("g:1", State(1, 7)), id=8, granted_through=2)))
        assert s.group.lease_until == 241.0

    def test_a_rank_that_asks_again_after_the_others_run_on_runs_on_with_them(self) -> None:
        """And does not begin at the quorum's top again."""
        s = Stage(2)
        s.commit(0)
        s.ask(0, 1)
        (join,) = of(SendJoin, s.ask(1, 1))
        s.feed(CallGone(s.calls))
        (answer,) = of(AnswerQuorum, s.grant(11, join.number))
        assert answer.base == State(1, 7)
        (again,) = of(AnswerQuorum, s.ask(1, 1))
        assert again.base == State(1, 7)

    def test_a_grant_in_a_quorum_that_is_over_is_answered_by_another_join(self) -> None:
        s = Stage()
        s.commit(0)
        (join,) = of(SendJoin, s.ask(step=1))
        s.feed(QuorumRevoked(7, (), "why"))
        (again,) = of(SendJoin, s.grant(11, join.number))
        assert again.reason is JoinReason.REJOINED
