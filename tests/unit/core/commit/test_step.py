"""core/commit/step.py: phases, sticky errors, who may commit, and what the next join says."""

from __future__ import annotations

from typing import Any

import pytest

from torchft_x.core.commit.step import Step, StepPhase
from torchft_x.core.commit.values import LocalVote, misfit
from torchft_x.core.types import Computed, JoinReason, Part, Prepared, State
from torchft_x.errors import CollectiveError, StepError

Q = 7
BOOM = CollectiveError("boom")


def begin(step: Step, quorum: int, top: State, rank: int | None, size: int, **fields: Any) -> Any:
    step.ask()
    return step.begin(quorum, top, rank, size, **fields)


def end(step: Step, commit: bool, *reason: str, **fields: bool) -> Any:
    step.vote()
    return step.conclude(commit, *reason, **fields)


def running(step: Step | None = None, *, quorum: int = Q, top: State | None = None, size: int = 2) -> Step:
    step = step or Step(min_replica_size=1)
    begin(step, quorum, step.state if top is None else top, 0, size)
    return step


def restored(**fields: int) -> Step:
    step = Step(min_replica_size=1, **fields)
    step.restore(State(4, 3), 0)
    return step


def redo(step: Step, kept: State | None) -> bool:
    """Of a rank that computed at `kept`, and whose part is the same as then."""
    part = Part(step.rank, ("a", "b"))
    return step.may_redo_with(None if kept is None else Computed(kept, part), part, all_keep=True)


def test_a_good_step_moves_the_state() -> None:
    step = running()
    vote = step.vote()
    assert vote.ok
    assert (vote.step, vote.quorum_id) == (0, Q)
    assert str(vote) == "enough_replicas=True, errored=None"
    out = step.conclude(True)
    assert out.committed
    assert (step.state, step.batches_committed) == (State(1, Q), 2)
    assert step.phase is StepPhase.IDLE
    assert step.ask().reason is JoinReason.BOUNDARY


def test_an_error_is_sticky_and_the_first_one_is_kept() -> None:
    step = running()
    assert step.fail(BOOM, suspects=("b:1",))
    assert not step.fail(CollectiveError("later"), suspects=("c:1", "b:1"))
    vote = step.vote()
    assert not vote.ok
    assert vote.errored is BOOM
    out = step.conclude(False)
    assert out.reason == "boom"
    assert (step.state, step.commit_failures) == (State(), 1)
    terms = step.ask()
    assert terms.reason is JoinReason.FAILED
    assert (terms.suspects, terms.commit_failures) == (("b:1", "c:1"), 1)
    step.begin(Q + 1, State(), 0, 1)
    assert step.vote().ok
    step.conclude(True)
    assert step.commit_failures == 0
    assert step.ask().suspects == ()


@pytest.mark.parametrize(
    ("report", "counts"),
    [
        (lambda s: s.fail(BOOM), True),
        (lambda s: s.over(Q, BOOM), True),
        (lambda s: s.over(Q - 1, BOOM), False),
    ],
)
def test_an_error_reported_while_asking_counts_for_the_coming_step(report: Any, counts: bool) -> None:
    step = Step(min_replica_size=1)
    step.ask()
    report(step)
    step.begin(Q, State(), 0, 2)
    assert step.error is (BOOM if counts else None)
    assert step.vote().ok is not counts


def test_an_error_after_the_commit_makes_the_next_join_failed() -> None:
    step = running()
    end(step, True)
    assert step.fail(BOOM, quorum_id=Q)
    assert step.state == State(1, Q)
    assert step.ask().reason is JoinReason.FAILED


def test_who_could_not_be_reached_is_told_with_the_next_ask_and_forgotten_then() -> None:
    step = running()
    step.not_reached(Q - 1, ("x:1",))  # of another quorum
    step.not_reached(Q, ("b:1",))
    step.fail(BOOM)
    step.vote()
    step.conclude(False)
    assert step.ask().unreached == ("b:1",)
    step.begin(Q + 1, State(), 0, 2)
    step.vote()
    step.conclude(False)
    assert step.ask().unreached == ()


def test_over_for_the_quorum_in_hand_fails_it_once() -> None:
    step = running()
    assert not step.fail(BOOM, quorum_id=Q - 1)  # an error of another quorum
    assert step.over(Q, BOOM)
    assert not step.over(Q, CollectiveError("again"))
    assert step.vote().errored is BOOM
    step.conclude(False)
    step.ask()
    assert not step.over(Q, BOOM)
    step.begin(Q + 1, State(), 0, 2)
    assert step.vote().ok


def test_the_newest_word_that_a_quorum_is_over_is_kept_and_of_that_the_first() -> None:
    for known in ((Q + 1, Q), (Q, Q + 1), (Q + 1, Q + 1)):
        step = Step(min_replica_size=1)
        step.ask()
        errors = [CollectiveError(f"{n}: {quorum_id}") for n, quorum_id in enumerate(known)]
        for quorum_id, error in zip(known, errors, strict=True):
            step.over(quorum_id, error)
        step.begin(Q + 1, State(), 0, 2)
        assert step.error is errors[known.index(Q + 1)]


def test_too_few_participants_do_not_commit() -> None:
    step = running(Step(min_replica_size=3))
    vote = step.vote()
    assert not vote.ok
    assert not vote.enough_replicas
    assert "2 participants, but min_replica_size is 3" in step.conclude(False).reason
    # Nothing is broken: the other groups needn't be released.
    assert step.ask().reason is JoinReason.BOUNDARY


def test_who_is_too_few_asks_again_more_and_more_rarely() -> None:
    """A lighthouse that is content with fewer groups answers at once, with the same few."""
    step = Step(min_replica_size=3)
    pauses, told = [], []
    for n in range(1, 8):
        running(step, quorum=n)
        outcome = end(step, False, "a member is not ok", undecided=n % 2 == 0)
        assert "2 participants, but min_replica_size is 3" in outcome.reason
        pauses.append(outcome.pause)
        told.append(not step.skips_log)
    assert pauses == [0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25]
    assert told == [True, True, False, True, False, False, False]  # 1, 2, 4, 8
    running(step, quorum=8, size=3)
    assert end(step, True).pause == 0.0
    for n in range(9, 1200):  # seed 8900000896: after 256 s the pause was computed from 2**1024, which is no float
        running(step, quorum=n)
        assert end(step, False).pause == min(0.25, 0.01 * 2 ** min(n - 9, 5))
    running(step, quorum=1200, size=3)
    assert end(step, False, "another rank has failed").pause == 0.0  # they were enough


def test_a_rank_behind_the_quorum_objects_until_healed() -> None:
    step = running(top=State(5, 3))
    vote = step.vote()
    assert not vote.ok
    assert vote.step == 5
    text = "this rank holds step 0 (quorum 0) while quorum 7 stands at step 5 (quorum 3); it has to heal first."
    assert str(vote.errored) == text
    step.conclude(False)
    begin(step, Q + 1, State(6, 4), None, 1)
    step.healed(State(6, 4), 11)
    assert step.vote().ok
    step.conclude(True)
    assert (step.state, step.batches_committed) == (State(7, Q + 1), 12)
    assert step.ask().reason is JoinReason.HEALED
    step.begin(Q + 2, step.state, 0, 2)
    end(step, True)
    assert step.ask().reason is JoinReason.BOUNDARY  # a heal is told of in the quorum in which it was


def test_equal_steps_of_different_quorums_are_different_states() -> None:
    step = Step(min_replica_size=1)
    step.restore(State(5, 2), 9)
    assert (step.state, step.batches_committed) == (State(5, 2), 9)
    begin(step, Q, State(5, 3), None, 1)
    assert not step.vote().ok


def test_a_torn_rank_never_commits_even_at_the_same_step() -> None:
    step = running(top=State(5, 3))
    step.heal_failed(CollectiveError("source died"), torn=True)
    end(step, False)
    assert step.ask().torn
    step.begin(Q + 1, State(0, 0), 0, 1)
    vote = step.vote()
    assert not vote.ok
    assert "half-applied" in str(vote.errored)
    step.conclude(False)
    running(step, quorum=Q + 2, top=State(5, 3)).heal_failed(BOOM, torn=False)
    assert step.torn  # until a heal is whole
    end(step, False)
    begin(step, Q + 3, State(5, 3), None, 1)
    step.healed(State(5, 3), 5)
    assert not step.torn
    assert step.vote().ok


def test_a_failed_heal_releases_others_only_if_they_count_on_us() -> None:
    counted = running(top=State())
    assert counted.heal_failed(BOOM, torn=False)
    assert counted.error is BOOM
    zeros = Step(min_replica_size=1)
    begin(zeros, Q, State(5, 3), None, 1)
    assert not zeros.heal_failed(BOOM, torn=False)
    assert zeros.error is None
    assert zeros.vote().errored is BOOM
    zeros.conclude(False)
    assert zeros.ask().reason is not JoinReason.FAILED
    assert not zeros.torn


def test_healing_to_another_state_is_refused() -> None:
    step = running(top=State(5, 3))
    with pytest.raises(StepError, match="stands at step 5"):
        step.healed(State(6, 3), 6)
    assert step.state == State()


def test_I6_a_dropped_step_says_that_it_was_not_committed_and_changes_nothing() -> None:
    step = running()
    assert step.vote().ok
    out = step.conclude(False)
    assert (out.committed, out.undecided, out.step, out.quorum_id, out.participants) == (False, False, 0, Q, 2)
    assert out.reason == "another rank of the group voted no"
    assert (step.state, step.batches_committed) == (State(), 0)
    assert step.ask().reason is JoinReason.FAILED
    assert "rank 1 said no" in end(running(), False, "rank 1 said no").reason


def test_while_it_asks_no_quorum_is_in_hand() -> None:
    step = Step(min_replica_size=1)
    assert (step.quorum_id, step.rank, step.size) == (0, None, 0)
    running(step)
    assert (step.quorum_id, step.rank, step.size) == (Q, 0, 2)
    step.ask()
    assert (step.quorum_id, step.rank, step.size) == (0, None, 0)
    assert not step.fail(BOOM, quorum_id=Q)


def test_who_never_had_a_quorum_has_failed_nobody() -> None:
    step = Step(min_replica_size=1)
    step.fail(BOOM)
    assert step.ask().reason is JoinReason.NEW
    step.fail(BOOM)
    step.ask_failed()
    assert step.ask().reason is JoinReason.NEW


def test_max_retries_counts_failures_in_a_row() -> None:
    step = Step(min_replica_size=1, max_retries=1)
    running(step).fail(BOOM)
    assert end(step, False).give_up == ""
    running(step, quorum=Q + 1).fail(BOOM)
    assert "2 steps in a row did not commit at step 0" in end(step, False).give_up


def test_verbs_out_of_place_change_nothing() -> None:
    step = Step(min_replica_size=1)
    with pytest.raises(StepError, match="start_quorum"):
        step.vote()
    with pytest.raises(StepError, match="no step is in hand"):
        step.begin(Q, State(), 0, 1)
    running(step)
    with pytest.raises(StepError, match="is running"):
        step.restore(State(3, 1), 3)
    step.vote()
    with pytest.raises(StepError, match="being voted on"):
        step.ask()
    assert step.phase is StepPhase.VOTING


def test_each_verb_has_its_phase() -> None:
    idle, asking, voting = Step(min_replica_size=1), Step(min_replica_size=1), running()
    asking.ask()
    voting.vote()
    verbs = {
        "running": (
            lambda s: s.drop(LocalVote(0, Q, 2, True, True, None), "x"),
            lambda s: redo(s, State()),
            lambda s: s.healed(State(), 0),
            lambda s: s.heal_failed(BOOM, torn=True),
        ),
        "voting": (lambda s: s.conclude(False), lambda s: s.decision_lost()),
        "asking": (lambda s: s.ask_failed(), lambda s: s.begin(Q, State(), 0, 1)),
    }
    steps = {"idle": idle, "asking": asking, "running": running(), "voting": voting}
    for phase, calls in verbs.items():
        for name, step in steps.items():
            for call in calls if name != phase else ():
                before = repr(step)
                with pytest.raises(StepError, match=f"this needs the phase '{phase}'"):
                    call(step)
                assert repr(step) == before


def test_an_unknown_outcome_leaves_the_rank_torn() -> None:
    step = running()
    step.vote()
    step.decision_lost()
    assert step.ask().torn


class TestUndecided:
    """The vote between groups ended without an answer: the next quorum decides (R14, R15)."""

    def held(self, at: State | None = None) -> Step:
        s, at = Step(min_replica_size=1), at or State()
        s.restore(at, 0)
        begin(s, 7, at, 0, 2)
        outcome = end(s, False, "no answer", undecided=True)
        assert outcome.undecided
        assert not outcome.committed
        assert outcome.reason == "no answer"
        terms = s.ask()
        assert terms.reason is JoinReason.FAILED
        assert terms.commit_failures == 0  # nothing has failed yet
        return s

    def test_it_was_committed_elsewhere(self) -> None:
        s = self.held()
        outcome = s.begin(8, State(1, 7), 0, 1, commit=Prepared(7, 1, 99))
        assert (outcome.committed, outcome.step, outcome.quorum_id, outcome.participants) == (True, 0, 7, 2)
        assert (s.state, s.batches_committed) == (State(1, 7), 2)
        assert not redo(s, State())  # those gradients are used up

    def test_it_was_committed_nowhere_and_is_reduced_again(self) -> None:
        s = self.held(State(4, 3))
        outcome = s.begin(8, State(4, 3), 0, 1)
        assert not outcome.committed
        assert "committed nowhere" in outcome.reason
        assert s.state == State(4, 3)
        assert redo(s, State(4, 3))

    def test_at_step_0_equal_states_need_not_be_equal_parameters(self) -> None:
        """I1: with init_sync the next quorum may hand out another member's weights under the same state, step 0;
        gradients of the former weights were reduced again."""
        s = self.held()
        s.begin(8, State(), 0, 1)
        assert not redo(s, State())

    def test_who_is_torn_reduces_nothing_again(self) -> None:
        """I1: a rank whose heal broke off has to heal, whatever state it is said to be at; its old gradients were
        reduced again."""
        s = restored(max_redo=2)
        begin(s, 7, State(4, 3), 0, 2)
        s.heal_failed(StepError("broke off"), torn=True)
        end(s, False, "no answer", undecided=True)
        begin(s, 8, State(4, 3), 0, 2)
        assert not redo(s, State(4, 3))

    def test_a_result_it_does_not_hold(self) -> None:
        s = Step(min_replica_size=1)
        s.ask()
        with pytest.raises(StepError, match="holds no such result"):
            s.begin(8, State(1, 7), 0, 1, commit=Prepared(7, 1, 99))
        with pytest.raises(StepError, match="what this rank holds is step 1 of quorum 7"):
            self.held().begin(8, State(1, 6), 0, 1, commit=Prepared(6, 1, 99))

    def test_gradients_of_another_state_are_not_reduced_again(self) -> None:
        s = self.held()
        s.begin(8, State(3, 2), None, 1)
        assert not redo(s, State())
        assert not redo(s, State(3, 2))  # it has to heal first
        assert not redo(s, None)

    def test_an_undecided_step_may_be_dropped(self) -> None:
        s = Step(min_replica_size=1, max_retries=0)
        begin(s, 7, State(), 0, 2)
        vote = s.vote()
        s.conclude(False, "who knows", undecided=True)
        begin(s, 8, State(), 0, 1)
        outcome = s.drop(vote, "nobody has it")
        assert (outcome.committed, outcome.reason, s.commit_failures) == (False, "nobody has it", 1)
        assert "nobody has it" in outcome.give_up
        assert s.vote().ok  # the quorum in hand is the next step's

    def test_after_a_drop_the_next_step_may_be_reduced_again_as_often_as_any(self) -> None:
        s = restored(max_redo=1)
        assert redo(running(s, quorum=5), State(4, 3))
        vote = s.vote()
        s.conclude(False, "who knows", undecided=True)
        running(s, quorum=6).drop(vote, "nobody has it")
        assert redo(s, State(4, 3))
        assert not redo(s, State(4, 3))

    def test_what_was_no_good_is_dropped_for_its_own_reason(self) -> None:
        s = running()
        s.fail(BOOM)
        vote = s.vote()
        s.conclude(False, undecided=True)
        ended = begin(s, 8, State(), 0, 1)
        assert not ended.committed  # nobody has asked for it, so that it is no trouble
        assert s.drop(vote, "nobody has it").reason == "boom"

    def test_what_was_too_few_is_counted_in_its_own_quorum(self) -> None:
        """It was dropped in a quorum of two, with the words "2 participants, but min_replica_size is 2"."""
        s = running(Step(min_replica_size=2), size=1)
        vote = s.vote()
        s.conclude(False, undecided=True)
        begin(s, 8, State(), 0, 2)
        outcome = s.drop(vote, "nobody has it")
        assert (outcome.reason, outcome.participants) == ("1 participants, but min_replica_size is 2", 1)

    def test_forsaking_costs_only_what_another_group_may_have_committed(self) -> None:
        held = self.held()
        held.abandon_in_doubt()
        assert held.torn
        nothing = Step(min_replica_size=1)
        nothing.abandon_in_doubt()
        assert not nothing.torn
        bad = running()
        bad.fail(BOOM)
        end(bad, False, undecided=True)
        bad.abandon_in_doubt()
        assert not bad.torn
        torn = running(top=State(5, 3))
        torn.heal_failed(BOOM, torn=True)
        torn.abandon_in_doubt()
        assert torn.torn

    def test_a_result_that_was_no_good_is_never_committed(self) -> None:
        s = running()
        s.fail(BOOM)
        s.vote()
        with pytest.raises(StepError, match="against this rank's vote"):
            s.conclude(True)
        s.conclude(False, undecided=True)
        s.ask()
        with pytest.raises(StepError, match="against this rank's vote"):
            s.begin(8, State(1, 7), 0, 1, commit=Prepared(7, 1, 99))

    def test_redo_has_an_end_and_starts_anew_with_a_commit_or_a_heal(self) -> None:
        s = restored(max_redo=2)
        begin(s, 4, State(4, 3), 1, 2)
        part = Part(1, ("b:1", "c:1"))
        assert not s.may_redo_with(
            Computed(State(4, 3), Part(None, ("a:1", "b:1"))), part, all_keep=True
        )  # uses up none (I9)
        s.fail(RuntimeError("x"), 4)
        done = []
        for quorum_id in range(5, 9):
            begin(s, quorum_id, State(4, 3), 0, 1)
            done.append(redo(s, State(4, 3)))
            s.fail(RuntimeError("x"), quorum_id)
        assert done == [True, True, False, False]
        begin(s, 9, State(4, 3), 0, 1)
        assert end(s, True).committed
        done = [redo(running(s, quorum=quorum_id), State(5, 9)) for quorum_id in (10, 11, 12)]
        assert done == [True, True, False]
        running(s, quorum=13, top=State(6, 12)).healed(State(6, 12), 0)
        assert redo(running(s, quorum=14), State(6, 12))


# --- I9: a gradient counts only in the part for which it was computed ---------------------------------------------------

ABC = ("a:1", "b:1", "c:1")


@pytest.mark.parametrize(
    ("computed", "part", "all_keep", "counts"),
    [
        (Part(1, ABC), Part(1, ABC), True, True),
        (Part(1, ABC), Part(1, ABC), False, True),  # its own number, whatever the others do
        (Part(1, ABC), Part(None, ABC[:1]), False, True),  # zeros
        (Part(None, ABC[:2]), Part(None, ABC[:2]), True, True),
        (Part(None, ABC[:2]), Part(1, ABC[1:]), True, False),  # a spare, or a group that has healed, counts now
        (Part(None, ABC[:2]), Part(0, ABC[2:]), True, False),
        (Part(2, ABC), Part(1, ABC[1:]), True, True),  # a is lost: b and c keep the numbers 1 and 2
        (Part(2, ABC), Part(1, ABC[1:]), False, False),  # b may compute anew, as number 0, or c as number 1
        (Part(1, ABC[:2]), Part(0, ABC[1:]), True, False),  # the spare c computes as number 1
        (Part(1, ABC), Part(0, ("b:1", "c:2")), True, False),  # another attempt of c has computed nothing yet
        (Part(0, ABC[1:]), Part(1, ABC), True, False),  # a counts now, as number 0
    ],
)
def test_I9_which_gradients_count(computed: Part, part: Part, all_keep: bool, counts: bool) -> None:
    why = misfit(Computed(State(4, 3), computed), part, None, all_keep=all_keep)
    assert (why == "") is counts
    assert counts or f"number {part.rank} now" in why
    step = restored()
    begin(step, 8, State(4, 3), part.rank, part.size)
    assert step.may_redo_with(Computed(State(4, 3), computed), part, all_keep=all_keep) is counts


def test_I9_the_part_stays_that_of_the_computation() -> None:
    """A number, then none, then the number again: what was computed for it counts."""
    step = restored(max_redo=2)
    kept = Computed(State(4, 3), Part(1, ABC[:2]))
    for quorum_id, part in ((8, Part(None, ("0:1", "a:1"))), (9, Part(1, ABC[:2]))):
        begin(step, quorum_id, State(4, 3), part.rank, part.size)
        assert step.may_redo_with(kept, part, all_keep=True)


def test_every_ask_gives_its_reason_again_until_it_is_answered() -> None:
    step = running()
    step.fail(BOOM)
    end(step, False)
    assert step.ask().reason is JoinReason.FAILED
    step.ask_failed()
    assert step.ask().reason is JoinReason.FAILED
    assert running().ask().reason is JoinReason.FAILED  # a step that is abandoned releases the others
