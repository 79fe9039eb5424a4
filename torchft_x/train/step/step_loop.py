"""The way of one rank through its steps: rounds, reductions, votes, and what becomes of a step that fails.

A step that fails is not lost while its local gradients are kept: the next quorum is asked for inside the same step, and
says which of these it is (protocol, section 5):

* another group may have committed it: then we commit the very same bits (*adopt*);
* nobody has: the local gradients are reduced again among those that are left (*redo*);
* we are behind, or have nothing to reduce: the step is dropped here, and the quorum that came is that of the next step.

Where `DistributedDataParallel` ends a synchronised backward, all of this happens before ``backward()`` returns, so that
clipping and unscaling see the final gradients; ``should_commit()`` only carries the decision out. All ranks of a group
do the same there: they leave backward with one answer. A script that reduces after that (a second backward, an
`allreduce` of its own) is found out at its first step, and one that throws a decided step away (`report_error` after
backward, or no ``should_commit``) when it first does; from then on it votes at the step's end (*late*), and so does
everybody in a quorum with it. What fails late can be reduced again only if nobody has touched the gradients since.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from torchft_x.core.commit.step import LocalVote, Outcome, Phase, Terms
from torchft_x.core.types import Quorum
from torchft_x.errors import CollectiveError, DeadlineError, StepError, UnreachableError
from torchft_x.rpc.codec.ranks import VoteReply
from torchft_x.train.context.context import RankContext
from torchft_x.train.context.work import ManagedWork
from torchft_x.train.step.quorum_round import QuorumRound
from torchft_x.train.step.quorum_thread import QuorumThread
from torchft_x.train.step.vote import StepVote

# What a lost member or a broken connection looks like: the gradients are as good as before.
_TRANSPORT = (CollectiveError, DeadlineError, UnreachableError)


class Kept(Protocol):
    """Who holds the local gradients of a pass."""

    def intact(self) -> bool:
        """Whether they can be reduced again: they are kept, and nobody has touched their result."""

    def reduce_again(self) -> bool:
        """Reduce them in the quorum in hand. False: it failed, and was reported."""


class NextRound(Protocol):
    def __call__(self, terms: Terms, previous: Quorum | None, *, waits: bool, keeps: bool, late: bool) -> QuorumRound:
        """The round that asks with these terms."""


@dataclass(frozen=True)
class _Passed:
    """The groups have decided to commit, and the optimizer has not stepped yet."""

    round: QuorumRound
    vote: LocalVote
    reply: VoteReply
    works: int  # reductions it was about; those after them come too late


class StepLoop:
    """See the module. Used by the training thread.

    Args:
        next_round: makes a round.
        waits: every round is awaited (synchronous quorums).
        redo: steps that failed are tried again with the gradients that are kept.
        late: the vote comes at the step's end in any case.
    """

    def __init__(
        self, parts: RankContext, pg: Any, next_round: NextRound, *, waits: bool, redo: bool, late: bool
    ) -> None:
        self.round: QuorumRound | None = None  # the newest; None before the first
        self.quorum: Quorum | None = None  # the newest that came
        self.works: list[ManagedWork] = []  # of the step in hand; awaited before the vote
        self._parts = parts
        self._pg = pg
        self._poll = StepVote(parts)
        self._next_round = next_round  # see above
        self._waits = waits  # fixed
        self._redo = redo  # fixed
        self._late = late or not parts.options.commit_vote  # this rank's script reduces after backward, or may
        self._background = QuorumThread(f"torchft_x-quorum-{parts.options.replica_id}")
        self._kept: list[Kept] = []  # passes of the step in hand
        self._kept_works = 0  # reductions that belong to them
        self._passed: _Passed | None = None  # the step in hand is to be committed, as was decided inside backward
        self._ended: bool | None = None  # the step in hand ended inside backward with another quorum: did it commit?
        self._failed: Exception | None = None  # what backward could not raise
        self._unwanted = False  # the script is against the gradients of the step in hand
        self._in_hand = False  # the quorum of the next step has come already

    # --- begin --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a step. See `Manager.start_quorum`."""
        p = self._parts
        p.guard.raise_if_ended()
        passed, self._passed = self._passed, None
        if passed is not None:
            self._throw_away(passed, "the next step was started without should_commit()")
        if self.round is not None:
            self.round.wait_idle()
        self.works.clear()
        self._kept, self._kept_works, self._ended, self._failed, self._unwanted = [], 0, None, None, False
        in_hand, self._in_hand = self._in_hand, False
        if in_hand and p.step.error is None:
            self.need_round().finish()
            return
        with p.guard.lock:
            given_up = (p.step.quorum_id, p.step.top.step) if p.step.phase is Phase.RUNNING else None
            terms = p.step.ask()
        if given_up is not None:
            self._poll.leave(*given_up)
        p.status.asked()
        waits = self._waits or self.quorum is None or terms.state.step == 0
        self.round = round = self._next_round(terms, self.quorum, waits=waits, keeps=False, late=self._late)
        if round.runs_on():  # answered at once: there was no time in which somebody could have seen it asking
            self.wait_quorum()
            return
        p.status.publish()
        if waits:
            round.run_here()
            self.wait_quorum()
        else:
            self._background.submit(round.run)

    def need_round(self) -> QuorumRound:
        """Raises `StepError` before the first step."""
        if self.round is None:
            raise StepError(
                "no step was started: call manager.start_quorum(), or zero_grad() of torchft_x's Optimizer, first."
            )
        return self.round

    def wait_quorum(self) -> None:
        """Wait until the quorum and the process group are there. Raises what kept them from coming."""
        round = self.need_round()
        round.wait_ready()
        self.quorum = round.quorum

    def close(self) -> None:
        self._background.close()

    # --- backward -----------------------------------------------------------------------------------------------------

    @property
    def decided(self) -> bool:
        """Whether the step in hand was decided inside backward."""
        return self._passed is not None or self._ended is not None or self._failed is not None

    def may_reduce(self) -> bool:
        """Somebody wants to reduce. False: not in this step, whose quorum is gone."""
        if not self.decided:
            return True
        if not self._late:
            self._late = True
            self._parts.log.info("this script reduces after backward: from now on groups vote at the step's end")
        return self._passed is not None and self._failed is None

    def veto(self, error: Exception) -> None:
        """The script is against the step in hand, which may have failed before for another reason."""
        self._unwanted = self._unwanted or not isinstance(error, _TRANSPORT)
        if self._passed is not None:
            self._failed = self._failed or error

    def keep(self, kept: Kept, works: int) -> bool:
        """A pass ends: its newest `works` reductions can be done again by `kept`. False: its gradients aren't wanted."""
        again = kept in self._kept  # a second pass over the same parameters has added to the first one's result
        self._kept = [] if again else [*self._kept, kept]
        self._kept_works = 0 if again else self._kept_works + works
        return self._redo

    def end_pass(self, good: bool, meanwhile: Callable[[], None] = lambda: None) -> None:
        """The pass that was kept last has ended, `good` or not: decide the step, if that may be done here; `meanwhile`
        may be called while the other groups' votes are on their way. Never raises in backward; the step's end does."""
        with self._parts.guard.lock:
            running = self._parts.step.phase is Phase.RUNNING
        if self.decided or not running:
            return
        try:
            if not (self._late or self.need_round().votes_late):
                self._ended = self._decide(self._parts.options.group_timeout, early=True, meanwhile=meanwhile)
            elif not good:
                self._redo_late()
        except Exception as e:
            self._parts.log.warning("this step can't be ended: %s", e)
            self._failed = e

    # --- end ----------------------------------------------------------------------------------------------------------

    def commit(self, limit: float) -> bool:
        """End the step. See `Manager.should_commit`; `limit` in seconds."""
        committed = self._end(limit)
        if committed:
            self._parts.transport.before_commit()
        return committed

    def _end(self, limit: float) -> bool:
        passed, self._passed = self._passed, None
        failed, self._failed = self._failed, None
        if passed is not None:
            against = failed or self._failed_after(passed)
            if against is not None:
                return self._throw_away(passed, str(against))
            return self._settle(passed.round, passed.vote, passed.reply, undecided=False).committed
        ended, self._ended = self._ended, None
        if failed is not None:
            raise failed
        if ended is not None:
            self.wait_quorum()
            return ended
        committed = self._decide(limit, early=False)
        assert committed is not None
        return committed

    def _decide(self, limit: float, *, early: bool, meanwhile: Callable[[], None] = lambda: None) -> bool | None:
        """Vote, and if that does not pass let the next quorum say what becomes of the step. Whether it is committed;
        None: it is to be (`early` only, inside backward)."""
        while True:
            round = self.need_round()
            self.wait_quorum()
            self._finish_reductions()
            round.wait_done()
            with self._parts.guard.lock:
                vote = self._parts.step.vote()
            self._parts.status.publish()
            reply = self._poll.ask(vote, [w.digest for w in self.works], limit, meanwhile)
            if early and reply.commit:
                self._passed = _Passed(round, vote, reply, len(self.works))
                return None
            undecided = reply.prepared or (not reply.commit and self._asks_inside(round, vote, early=early))
            outcome = self._settle(round, vote, reply, undecided=undecided)
            if not outcome.undecided:
                if outcome.give_up:
                    raise StepError(outcome.give_up)
                return outcome.committed
            decided = self._next_quorum(round, vote, early=early)
            if decided is not None:
                return decided

    def _failed_after(self, passed: _Passed) -> Exception | None:
        """What went wrong in reductions that were issued after the decision."""
        bad = [w for w in self.works[passed.works :] if not w.wait()]
        if not bad:
            return None
        with self._parts.guard.lock:
            return self._parts.step.error or CollectiveError("a reduction failed")

    def _throw_away(self, passed: _Passed, why: str) -> bool:
        """The script is against a step that the groups have decided to commit. Nothing has changed here yet, so it may: to
        the others this group has failed in it. Those that have committed are who it heals from; if none has, nobody
        holds that state, and the step is computed again."""
        p = self._parts
        told = "" if self._late else " From now on the groups vote when the step ends: Manager(vote_in_backward=False)."
        self._late = True
        p.log.warning(
            "step %s is thrown away after the groups had decided, at the end of backward(), to commit it: %s. If others "
            "have committed it, this group copies their state in the next step.%s", passed.vote.step, why, told,
        )  # fmt: skip
        reply = VoteReply(False, f"thrown away after it was decided: {why}")
        outcome = self._settle(passed.round, passed.vote, reply, undecided=False)
        # Who waits for this group in a collective of that quorum hears it at once.
        p.guard.fail(StepError(f"step {passed.vote.step} was {outcome.reason}"), passed.vote.quorum_id)
        if outcome.give_up:
            raise StepError(outcome.give_up)
        return False

    def _redo_late(self) -> None:
        """A reduction of the pass that was kept last has failed: reduce it again with the next quorum, if that may be."""
        while True:
            with self._parts.guard.lock:
                error, running = self._parts.step.error, self._parts.step.phase is Phase.RUNNING
            round = self.need_round()
            if not running or error is None or not self._may_redo(error, early=False):
                return
            round.wait_idle()  # a snapshot for others may still be taken
            with self._parts.guard.lock:
                vote = self._parts.step.vote()
            self._settle(round, vote, VoteReply(False, str(error)), undecided=True)
            self._ended = self._next_quorum(round, vote, early=False)
            if self._ended is not None:
                return

    def _asks_inside(self, round: QuorumRound, vote: LocalVote, *, early: bool) -> bool:
        """Whether a step that did not pass is worth another quorum. In groups of several ranks all must say the same,
        whatever each of them has seen: what they say here depends on the quorum only."""
        if early and self._parts.options.group_world_size > 1:
            return vote.enough_replicas and not round.heals
        return self._may_redo(vote.errored, early=early)

    def _may_redo(self, error: Exception | None, *, early: bool) -> bool:
        """Whether this rank can reduce this step's gradients again. Late, ranks of a group can't agree on it."""
        p = self._parts
        with p.guard.lock:
            ready = p.step.may_redo and p.guard.ended is None
        good = not self._unwanted and (error is None or isinstance(error, _TRANSPORT))
        alone = early or p.options.group_world_size == 1
        return alone and ready and good and self._has_kept() and self.need_round().computed_at is not None

    def _has_kept(self) -> bool:
        """Whether the step can be reduced again unseen. All its reductions must be among the kept ones: a group that
        computes the step anew issues them all, in the same order."""
        whole = bool(self._kept) and self._kept_works == len(self.works)
        return self._redo and whole and all(k.intact() for k in self._kept)

    def _settle(self, round: QuorumRound, vote: LocalVote, reply: VoteReply, *, undecided: bool) -> Outcome:
        p = self._parts
        with p.guard.lock:
            outcome = p.step.settle(reply.commit, reply.reason, undecided=undecided)
        if outcome.undecided:
            p.log.info("step %s is undecided (%s): the next quorum says what becomes of it", vote.step, outcome.reason)
            # Nothing more is reduced in it: whoever has committed, and waits there, hears it at once.
            p.guard.fail(StepError(f"step {vote.step} is undecided: {outcome.reason}"), vote.quorum_id)
        else:
            round.tell(vote, outcome)
        if outcome.pause:  # sleep(0) would let other threads have the lock, once a step
            time.sleep(outcome.pause)
        return outcome

    def _next_quorum(self, before: QuorumRound, vote: LocalVote, *, early: bool) -> bool | None:
        """Ask for the quorum that decides. True: the step is committed after all; False: it is dropped; None: its
        gradients were reduced again, as far as that went."""
        p = self._parts
        keeps = self._may_redo(vote.errored, early=early)
        with p.guard.lock:
            terms = p.step.ask()
        p.status.publish()
        computed_at = before.computed_at
        self.round = round = self._next_round(terms, self.quorum, waits=True, keeps=keeps, late=self._late)
        try:
            round.run_here(finish=False)
            self.wait_quorum()
        except Exception:
            with p.guard.lock:
                p.step.forsake()
            raise
        ended = round.ended
        if ended is not None and ended.committed:
            p.events.emit("adopt", step=ended.step, quorum=ended.quorum_id)
            before.tell(vote, ended)
            self._in_hand = True  # the state is offered when the optimizer has stepped
            return True
        round.finish()
        with p.guard.lock:
            again = round.again and not round.heals and p.step.redo(computed_at)
        if not again:
            self._drop(before, vote, ended.reason if ended is not None else "")
            return False
        round.computed_at = computed_at
        p.events.emit("redo", step=vote.step, quorum=self.quorum.id if self.quorum else None)
        p.log.info("step %s: the same gradients are reduced again", vote.step)
        self.works.clear()
        for kept in self._kept:
            if not kept.reduce_again():
                break
        self._kept_works = len(self.works)
        return None

    def _drop(self, before: QuorumRound, vote: LocalVote, why: str) -> None:
        """The undecided step was committed nowhere, and is not reduced again. The quorum that came is the next step's."""
        p = self._parts
        with p.guard.lock:
            outcome = p.step.drop(vote, why)
        before.tell(vote, outcome)
        self._in_hand = True
        if outcome.give_up:
            raise StepError(outcome.give_up)

    def _finish_reductions(self) -> None:
        for managed in self.works:
            managed.wait()
        if torch.accelerator.is_available():
            torch.accelerator.current_stream().synchronize()  # so that asynchronous errors are seen before the vote
        error = self._pg.errored()
        if error is not None:
            self._parts.guard.fail(error)
