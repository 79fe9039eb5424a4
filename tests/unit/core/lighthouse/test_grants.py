"""Grants over many steps: the lighthouse hands them out, a group runs on in them (R5, R7, R11, R16)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.core.group.stage import Stage, joins
from tests.unit.core.scene import OURS, Scene, issued, member, of, quorum
from torchft_x.core.messages import Tick
from torchft_x.core.messages.group import Ask, CallGone, GroupEffect, QuorumArrived, QuorumReply, SessionDown, SessionUp
from torchft_x.core.messages.lighthouse import Extend, Join, Progress, RevokeQuorum
from torchft_x.core.types import JoinReason, Quorum, State


class Lights(Scene):
    """A lighthouse whose members take grants. A step takes 0.1 s, a grant is worth 1 s."""

    def hello(self, replica_id: str, **fields: Any) -> list[Any]:
        return super().hello(replica_id, **{"runs_on": True, **fields})

    def boundary(
        self, replica_id: str, step: int, reason: JoinReason = JoinReason.BOUNDARY, seconds: float = 0.1, **fields: Any
    ) -> list[Any]:
        cur = self.lighthouse.current
        here = member(replica_id, State(step, cur.id if cur else 5), **fields)
        return self.feed(Join(self.sessions[replica_id], here, reason, number=step, step_seconds=seconds))

    def progress(self, replica_id: str, step: int) -> list[Any]:
        cur = self.lighthouse.current
        return self.feed(Progress(self.sessions[replica_id], cur.id, step, step, 0.1))

    def granted(self, effects: list[Any]) -> list[int]:
        return [e.granted_through for e in of(Extend, effects)]


class TestLighthouse:
    def test_the_status_knows_about_steps_that_were_not_asked_for(self) -> None:
        s = Lights.started("a:1", "b:1")
        s.boundary("a:1", 1)
        s.progress("a:1", 6)
        assert (s.lighthouse.reached, s.state.granted_through) == (6, 16)
        s.kill("a:1")
        s.join("b:1", State(6, s.lighthouse.current.id), JoinReason.FAILED)
        assert s.lighthouse.reached == 6

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
        assert s.committed().step == 2
        for name in ("a:1", "b:1"):
            assert s.granted(s.boundary(name, 2)) == []
        assert issued(s.boundary("c:1", 2, JoinReason.HEALED)) == [["a:1", "b:1", "c:1"]]
        assert s.granted(s.boundary("a:1", 3)) == [13]

    @pytest.mark.parametrize("shrink_only", [False, True])
    def test_who_has_healed_to_the_first_weights_takes_the_grant(self, shrink_only: bool) -> None:
        """With init_sync all but one heal in the first quorum, at step 0 like the others. One ran on in the grant
        while the healed one waited at the lighthouse: a time-out in every fresh job."""
        s = Lights.started("a:1", "b:1")
        assert s.granted(s.boundary("a:1", 1)) == [11]
        assert s.granted(s.boundary("b:1", 1, JoinReason.HEALED, shrink_only=shrink_only)) == [11]

    @pytest.mark.parametrize("how", ["drops a step", "leaves", "fails after its commit"])
    def test_who_runs_on_no_more_inside_a_grant_releases_the_others(self, how: str) -> None:
        """A veto breaks nothing, so this member only says that it is at a boundary. The others ran on inside the grant
        and waited for it in the next step until a time-out."""
        s = Lights()
        first = s.start("a:1", "b:1")
        s.boundary("a:1", 1)
        if how == "leaves":
            effects = s.leave("b:1", State(3, first.id))
        elif how == "drops a step":
            s.boundary("b:1", 1)
            effects = s.boundary("b:1", 5, commit_failures=1)
        else:
            effects = s.boundary("b:1", 1, JoinReason.FAILED)
        assert [(e.quorum_id, e.sessions) for e in of(RevokeQuorum, effects)] == [(first.id, (s.sessions["a:1"],))]
        assert s.granted(effects) == []

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
        s = Lights.started("a:1", "b:1", return_seconds=2.0)
        s.exited("b:1")
        assert issued(s.join("a:1", s.committed())) == [["a:1"]]
        assert s.granted(s.boundary("a:1", 2)) == [12]  # never larger

    def test_a_large_quorum_asks_less_often_after_a_loss(self) -> None:
        names = [f"g{n:03}:1" for n in range(601)]
        s = Lights.started(*names, return_seconds=0.1, grant_seconds=5.0)
        s.exited(names[0])
        for name in names[1:]:
            effects = s.join(name, s.committed())
        assert len(issued(effects)[0]) == 600
        assert s.granted(s.boundary(names[1], 2)) == [5]

    def test_a_member_that_takes_no_grants_keeps_all_at_one_step(self) -> None:
        """It would wait at the next boundary for those that wait for it in a collective."""
        s = Lights()
        s.hello("a:1")
        s.hello("b:1", runs_on=False)
        s.join("a:1")
        s.join("b:1")
        assert s.granted(s.boundary("a:1", 1)) == []
        assert issued(s.join("b:1", s.committed())) == [["a:1", "b:1"]]

    @pytest.mark.parametrize("fresh", [False, True])
    def test_R16_whoever_stands_before_what_turns_out_to_be_granted_is_let_on(self, fresh: bool) -> None:
        """It came back first and asks; the other had begun a step in between and waits for it in a collective."""
        s = Lights()
        held = quorum(member("a:1"), member("b:1"), id=5, granted_through=1)
        if not fresh:
            held = s.start("a:1", "b:1")
            s.close("a:1")
            s.close("b:1")
        back = {"quorum": held, "lease_left": 50.0, "state": State(30, held.id)}
        s.hello("a:1", granted_through=5, **back)
        if not fresh:
            s.arrive("c:1")
        assert s.granted(s.boundary("a:1", 30)) == []
        assert s.granted(s.hello("b:1", granted_through=31, **back)) == [31]
        if not fresh:
            assert issued(s.boundary("a:1", 31)) == []
            assert issued(s.boundary("b:1", 31)) == [["a:1", "b:1", "c:1"]]

    @pytest.mark.parametrize(
        ("step", "ran_in", "granted", "reported_in", "counts"),
        [
            (30, 0, 1, 0, 30),  # it has run past the grant while it had no session
            (3, 0, 20, 0, 20),  # a grant that was on its way to us when the session broke, or of an earlier attempt
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
        assert s.lighthouse._quorum_state.granted_through == counts

    def test_R16_who_stands_before_what_another_one_ran_runs_on_and_who_stands_at_it_waits(self) -> None:
        s = Lights(grant_steps=4)
        first = s.start("a:1", "b:1", "c:1")
        s.boundary("b:1", 1)  # granted through 5
        s.arrive("d:1")
        assert s.granted(s.boundary("b:1", 5)) == s.granted(s.boundary("c:1", 30)) == []
        s.close("a:1")
        effects = s.hello("a:1", state=State(30, first.id), quorum=first, granted_through=1)
        assert [(e.session, e.granted_through) for e in of(Extend, effects)] == [(s.sessions["b:1"], 30)]
        assert s.state.asking == {"c:1", "d:1"}
        assert s.state.missing == {"a:1", "b:1"}

    @pytest.mark.parametrize("quorum_id", [-1, 1])
    def test_a_request_about_another_quorum_is_not_answered(self, quorum_id: int) -> None:
        s = Lights()
        first = s.start("a:1", "b:1")
        assert s.feed(Progress(s.sessions["a:1"], first.id + quorum_id, 1, 1, 0.1)) == []

    def test_who_is_no_member_gets_no_grant(self) -> None:
        s = Lights.started("a:1", "b:1")
        s.hello("c:1", quorum=None)
        assert s.granted(s.progress("c:1", 1)) == []
        assert s.granted(s.boundary("c:1", 1)) == []

    @pytest.mark.parametrize("fields", [{"torn": True}, {"commit_failures": 1}, {"state": State()}])
    def test_trouble_and_what_was_not_committed_in_this_quorum_are_not_answered_by_a_grant(
        self, fields: dict[str, Any]
    ) -> None:
        s = Lights.started("a:1", "b:1")
        here = member("a:1", **{"state": State(1, s.lighthouse.current.id), **fields})
        assert s.granted(s.feed(Join(s.sessions["a:1"], here, number=1, step_seconds=0.1))) == []

    @pytest.mark.parametrize(("seconds", "steps"), [(0.0, 1), (0.3, 3), (1.0, 1), (5.0, 1)])
    def test_a_grant_is_worth_about_a_second_and_a_step_at_least(self, seconds: float, steps: int) -> None:
        s = Lights.started("a:1", "b:1")
        assert s.granted(s.boundary("a:1", 1, seconds=seconds)) == [1 + steps]

    def test_a_grant_renews_the_lease(self) -> None:
        s = Lights.started("a:1", "b:1", lease=30.0, lease_margin=1.0, boot_id="another host")
        s.now = 20.0
        s.boundary("a:1", 1)
        for name in ("a:1", "b:1"):
            s.kill(name)
        assert [s.is_over(name, 31.0) for name in ("a:1", "b:1")] == [False, True]
        assert s.is_over("a:1", 51.0)

    def test_a_fresh_lighthouse_takes_the_grant_over(self) -> None:
        old = quorum(member("a:1"), member("b:1"), id=5, granted_through=1)
        s = Lights()
        s.hello("a:1", quorum=old, granted_through=20, state=State(12, 5), lease_left=50.0)
        s.hello("b:1", quorum=old, granted_through=15, state=State(12, 5), lease_left=50.0)
        s.arrive("c:1")  # pending from the start
        assert s.granted(s.boundary("b:1", 15)) == [20]

    def test_a_boundary_with_nothing_pending_is_answered_by_more_and_by_one_number_for_all(self) -> None:
        s = Lights.started("a:1", "b:1")
        (extend,) = of(Extend, s.boundary("a:1", 1))
        assert (extend.granted_through, extend.number, extend.lease) == (11, 1, 120.0)
        assert s.granted(s.boundary("b:1", 1)) == [11]
        assert s.granted(s.progress("a:1", 6)) == [16]
        assert s.granted(s.boundary("b:1", 1)) == [16]
        assert s.lighthouse.current.number == 1  # still the same quorum
        assert issued(s.join_all("a:1", "b:1", state=s.committed())) == [["a:1", "b:1"]]  # they take no grant


OVER = RevokeQuorum(7, ("h:1",), "h:1 is lost")
GONE = SessionDown("the lighthouse is gone")


class Runner(Stage):
    """A group that runs on, in quorum 7 with one step granted. A step takes 0.1 s."""

    def __init__(self, world_size: int = 1) -> None:
        super().__init__(world_size, step_seconds=0.1, runs_on=True)
        self.training()

    def quorum(self, id: int = 7, **fields: Any) -> Quorum:
        return super().quorum(id, **{"granted_through": 1, **fields})

    def grant(self, through: int, number: int) -> list[GroupEffect]:
        return self.feed(Extend(7, through, 120.0, number))

    def granted(self, through: int) -> Runner:
        """Has committed one step, and been granted more."""
        assert of(QuorumReply, self.grant(through, self.wants_more().number))
        return self

    def wants_more(self) -> Join:
        """Commit the first step and ask for more."""
        self.commit(0)
        for rank in range(self.ranks):
            effects = self.ask(rank, 1)
        (join,) = joins(effects)
        return join


class TestGroup:
    def test_a_grant_answers_a_join_that_only_asked_for_more(self) -> None:
        s = Runner()
        join = s.wants_more()
        assert join.step_seconds == 0.1
        (answer,) = of(QuorumReply, s.grant(11, join.number))
        assert answer.base == State(1, 7)
        assert s.group.waiting == ""

    def test_R11_a_grant_that_allows_no_further_step_answers_nobody(self) -> None:
        s = Runner()
        join = s.wants_more()
        effects = s.grant(1, join.number)
        assert of(QuorumReply, effects) == []
        assert joins(effects)  # so that somebody answers it

    def test_R3_a_grant_that_answers_an_earlier_request_does_not_answer_the_join(self) -> None:
        """I1: a grant that was asked for earlier arrived after the join and was taken for its answer. At the
        lighthouse the join stood, and was answered by a quorum after this group had gone on."""
        s = Runner().granted(3)
        s.commit(1)
        (progress,) = of(Progress, s.ask(step=2))
        s.commit(2)
        (join,) = joins(s.ask(step=3))
        assert s.grant(20, progress.number) == []
        assert s.group.waiting
        (answer,) = of(QuorumReply, s.grant(20, join.number))
        assert answer.base == State(3, 7)

    def test_inside_the_grant_a_step_costs_no_message(self) -> None:
        s = Runner().granted(11)
        for step in range(1, 5):
            s.commit(step)
            assert s.ask(step=step + 1) == [QuorumReply(s.quorum(), 120.0, State(step + 1, 7), calls=(s.calls,))]

    def test_also_a_rank_that_asks_again_when_the_lease_has_ended(self) -> None:
        s = Runner(2).granted(2)
        s.commit(1)
        s.ask(0, 2)
        s.ask(1, 2)
        s.feed(CallGone(s.calls))
        assert of(QuorumReply, s.feed(GONE))  # rank 0 runs on
        s.now = 120.1
        assert of(QuorumReply, s.ask(1, 2))

    def test_R4_nor_when_the_group_has_asked_for_the_next(self) -> None:
        s = Runner(2).granted(11)
        s.commit(1)
        for reason in (JoinReason.BOUNDARY, JoinReason.FAILED):
            for rank in (0, 1):
                effects = s.ask(rank, 2, reason=reason)
        assert joins(effects)
        assert of(QuorumReply, s.ask(0, 2)) == []

    def test_what_was_asked_for_on_an_older_session_is_void(self) -> None:
        s = Runner().granted(11)
        sent: list[GroupEffect] = []
        for step in range(1, 8):
            s.commit(step)
            sent += s.ask(step=step + 1)
        (progress,) = of(Progress, sent)
        s.feed(SessionUp())  # another one, before anybody saw the end of the older
        s.grant(99, progress.number)
        for step in range(8, 11):
            s.commit(step)
            effects = s.ask(step=step + 1)
        assert joins(effects)  # 11 was the last

    def test_a_rank_that_has_missed_a_commit_asks_the_lighthouse(self) -> None:
        s = Runner(2).granted(11)
        s.commit(1)
        assert of(QuorumReply, s.ask(1, 1)) == []

    def test_a_step_that_was_dropped_is_no_boundary_of_this_quorum(self) -> None:
        s = Runner()
        assert joins(s.ask())
        assert of(QuorumReply, s.feed(GONE)) == []

    def test_I2_a_rank_does_not_run_on_when_another_one_has_asked(self) -> None:
        s = Runner(2).granted(11)
        s.commit(1)
        assert s.ask(0, 2, reason=JoinReason.FAILED) == []
        (join,) = joins(s.ask(1, 2))
        assert join.reason is JoinReason.FAILED

    def test_R7_a_quorum_in_which_somebody_heals_is_left_after_one_step(self) -> None:
        for when in ("before", "after"):
            s = Runner()
            s.commit(0)
            s.ask(step=1)
            behind = quorum(member("g:1", State(1, 7)), member("h:1"), id=8, granted_through=2)
            s.feed(QuorumArrived(behind))
            s.vote(step=1)
            effects = s.feed(GONE) if when == "before" else []
            effects += s.feed(Ask(s.call(), 0, State(2, 8), step_seconds=0.1))
            effects += s.feed(GONE) if when == "after" else []
            assert of(QuorumReply, effects) == []

    def test_a_grant_while_only_some_ranks_have_asked_answers_nobody(self) -> None:
        s = Runner(2).granted(11)
        sent: list[GroupEffect] = []
        for step in range(1, 8):
            s.commit(step)
            sent += s.ask(0, step + 1) + s.ask(1, step + 1)
        (progress,) = of(Progress, sent)
        assert s.ask(0, 8, reason=JoinReason.FAILED) == []
        assert s.grant(21, progress.number) == []

    @pytest.mark.parametrize("why", ["no session", "asking"])
    def test_more_is_asked_for_on_a_session_and_not_while_the_group_asks_anyway(self, why: str) -> None:
        s = Runner().granted(11)
        s.now = 100.0
        if why == "no session":
            s.feed(SessionDown("cut"))
        else:
            s.ask(step=1, reason=JoinReason.FAILED)
        assert s.feed(Tick()) == []

    def test_R16_the_next_lighthouse_hears_how_far_it_has_run(self) -> None:
        s = Runner()
        assert s.group.hello(s.now).granted_through == 1
        s.commit(0)
        assert s.group.hello(s.now).granted_through == 2  # one step, while nobody knows how long it takes
        s = Runner().granted(30)
        assert s.group.hello(s.now).granted_through == 30
        s.feed(GONE)
        for step in range(1, 41):
            s.commit(step)
            (answer,) = of(QuorumReply, s.ask(step=step + 1, keeps=True))
            assert not answer.again  # nothing has to be reduced again where the quorum stands
        assert s.group.hello(s.now).granted_through == 41 + 15  # 1.5 s of steps from where it stands

    def test_R16_it_runs_on_with_the_next_lighthouse_for_as_long_as_it_has_told_it(self) -> None:
        s = Runner().granted(4)
        s.feed(GONE)
        s.commit(1)
        assert of(QuorumReply, s.ask(step=2))
        told = s.group.hello(s.now).granted_through
        s.feed(SessionUp())
        for step in range(2, told):
            s.commit(step)
            answered = of(QuorumReply, s.ask(step=step + 1))
            assert len(answered) == (step + 1 < told), step
        assert told == 2 + 15

    def test_R7_a_session_that_flaps_puts_the_end_of_the_grant_off_once(self) -> None:
        """Others wait for it (F4). Hellos that nobody answers don't count: the lighthouse is away, and it runs past them."""
        s = Runner().granted(4)
        s.commit(1)
        s.feed(GONE)
        for step in (2, 3):
            assert of(QuorumReply, s.ask(step=step))
            s.commit(step)
            assert s.group.hello(s.now).granted_through == step + 1 + 15
        promised = 4 + 15
        for step in range(4, promised):
            s.feed(SessionUp())
            assert of(QuorumReply, s.ask(step=step))
            s.commit(step)
            s.feed(SessionDown("cut"))
            assert s.group.hello(s.now).granted_through == promised
        s.feed(SessionUp())
        assert joins(s.ask(step=promised))

    def test_R16_it_promises_again_a_minute_later_and_in_the_next_quorum(self) -> None:
        s = Runner().granted(4)
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

    @pytest.mark.parametrize("other", ["carrier", "healer"])
    def test_nothing_is_promised_where_somebody_asks_before_each_step(self, other: str) -> None:
        s = Runner().granted(4)
        s.ask(step=1, reason=JoinReason.FAILED)
        fellow = member("h:1", State() if other == "healer" else State(1, 7), library=OURS)
        s.feed(QuorumArrived(quorum(member("g:1", State(1, 7), library=OURS), fellow, id=8, granted_through=2)))
        s.vote(step=1)
        assert s.group.state == State(2, 8)
        assert (s.group.hello(s.now).granted_through > 2) == (other == "carrier")

    @pytest.mark.parametrize("why", ["asking", "over", "lease"])
    def test_nothing_is_promised_that_could_not_be_run_without_a_session(self, why: str) -> None:
        s = Runner().granted(2)
        s.commit(1)
        if why == "asking":
            assert joins(s.ask(step=2))
        elif why == "over":
            s.feed(OVER)
        else:
            s.now = s.group.lease_until + 0.1
        assert s.group.hello(s.now).granted_through == 2

    def test_trouble_goes_to_the_lighthouse(self) -> None:
        for fields in ({"reason": JoinReason.FAILED}, {"torn": True}, {"commit_failures": 1}):
            s = Runner().granted(11)
            s.commit(1)
            assert joins(s.ask(step=2, **fields)), fields

    def test_how_long_a_step_takes_is_remembered(self) -> None:
        s = Runner().granted(11)
        s.commit(1)
        s.feed(Ask(90, 0, State(2, 7)))  # it can't say
        s.now = 100.0
        (progress,) = of(Progress, s.feed(Tick()))
        assert progress.step_seconds == 0.1

    def test_the_healed_and_those_that_want_no_newcomers_run_on(self) -> None:
        for fields in ({"reason": JoinReason.HEALED}, {"shrink_only": True}):
            s = Runner().granted(11)
            s.commit(1)
            assert of(QuorumReply, s.ask(step=2, **fields)), fields
            s = Runner()
            s.commit(0)
            (join,) = joins(s.ask(step=1, **fields))
            assert of(QuorumReply, s.grant(11, join.number)), fields

    def test_R16_without_a_session_it_runs_on_until_the_lease_ends(self) -> None:
        s = Runner().granted(2)
        s.commit(1)
        (join,) = joins(s.ask(step=2, keeps=True))
        assert join.reason is JoinReason.BOUNDARY
        (answer,) = of(QuorumReply, s.feed(GONE))
        assert (answer.base, answer.again) == (State(2, 7), False)  # running on is no reason to reduce again
        s.commit(2)
        s.now = 120.1
        assert s.ask(step=3) == []
        (join,) = joins(s.feed(SessionUp()))
        assert join.reason is JoinReason.REJOINED

    @pytest.mark.parametrize("asked_before", range(4))
    def test_R16_whichever_rank_asks_after_the_session_has_ended(self, asked_before: int) -> None:
        """A group of three ranks stood until the lighthouse was back, if it went between the requests of two of them."""
        s = Runner(3).granted(2)
        s.commit(1)
        effects = [effect for rank in range(asked_before) for effect in s.ask(rank, step=2)]
        effects += s.feed(GONE)
        effects += [effect for rank in range(asked_before, 3) for effect in s.ask(rank, step=2)]
        answers = of(QuorumReply, effects)
        assert sum(len(answer.calls) for answer in answers) == 3
        assert {answer.base for answer in answers} == {State(2, 7)}

    def test_a_rank_that_asks_again_after_the_others_run_on_runs_on_with_them(self) -> None:
        """And does not begin at the quorum's top again."""
        for ranks in (2, 1):
            s = Runner(ranks)
            join = s.wants_more()
            s.feed(CallGone(s.calls))
            answers = of(QuorumReply, s.grant(11, join.number))
            assert [a.base for a in answers] == [State(1, 7)] * (ranks - 1)
            (again,) = of(QuorumReply, s.ask(ranks - 1, 1))
            assert again.base == State(1, 7)

    @pytest.mark.parametrize("why", ["lease", "over"])
    def test_a_grant_that_comes_after_the_lease_is_answered_by_another_join(self, why: str) -> None:
        """L1: the lighthouse takes the join for answered."""
        s = Runner()
        join = s.wants_more()
        if why == "over":
            s.feed(OVER)
        else:
            s.now = 121.0  # stopped, or cut off without either side noticing
        (again,) = joins(s.grant(11, join.number))
        assert again.reason is JoinReason.REJOINED
        assert again.number != join.number
        assert s.grant(11, join.number) == []
        s.feed(QuorumArrived(quorum(member("g:1", State(1, 7)), id=8, granted_through=2)))
        assert s.group.lease_until == s.now + 120.0

    @pytest.mark.parametrize("over", [False, True])
    def test_all_ranks_begin_a_step_alike_also_after_the_lease_but_not_in_a_quorum_that_is_over(
        self, over: bool
    ) -> None:
        """The step has begun; whether it may commit is asked at the commit (R13)."""
        s = Runner(2).granted(11)
        s.commit(1)
        assert of(QuorumReply, s.ask(0, 2))
        if over:
            s.feed(OVER)
        else:
            s.now = 120.1
        assert bool(of(QuorumReply, s.ask(1, 2))) is not over
