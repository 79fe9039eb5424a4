"""One training step of one rank in five stages, and the resolution of a step that fails.

1. *Ask* who takes part (`start`; `QuorumRound`). Within a grant nothing is sent.
2. *Prepare* the quorum: a process group of its members, then copies of the state to and from others
   (`QuorumRound.run`; beside the forward pass, if quorums are asynchronous).
3. *Reduce* gradients over the groups (`reduce`; `Reductions`).
4. *Vote*: the ranks of the group, then the groups (`StepVote`).
5. *End* the step: commit it, or let the next quorum resolve it (`commit`, `end_pass`).

A step that fails is not lost while its local gradients are kept. This rank asks for the next quorum inside the same
step. That quorum resolves the failed step in one of these ways.

* *adopt*: another group may have committed the step, so this rank commits the same bits;
* *redo*: no group has committed it, so the remaining groups reduce their local gradients again, if they were computed
  for the part that this rank has in the new quorum (`core.commit.values.misfit`);
* *drop*: this rank is behind, or has nothing to reduce. The new quorum is then that of the next step.

At the start of a step the parameters must be the committed ones, because newcomers copy them. A script that moves them
inside its steps (`CommittedState.moved`) is detected in its first step. From then on its state is exchanged only at the
start of steps, while the training thread waits, and a step that fails while the parameters are moved is dropped.

When `DistributedDataParallel` ends a synchronised backward, stages 4 and 5 happen before ``backward()`` returns, so
that clipping and unscaling see the final gradients; ``should_commit()`` only carries the decision out. All ranks of a
group leave backward with the same answer.

Two kinds of scripts can't vote there. A script that reduces after backward (a second backward, an `allreduce` of its
own) is detected in its first step. A script that throws a decided step away (`report_error` after backward, or no
``should_commit``) is detected when it first does so. From then on it votes at the step's end (*late*), and so do all
members of a quorum with it. A late failure can be reduced again only if nothing has changed the gradients since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from torchft_x.comm.quantized.format import Format
from torchft_x.comm.slot_sum import Scratch
from torchft_x.comm.votes.ranks import Decision
from torchft_x.comm.work import DoneWork
from torchft_x.core.commit.step import StepPhase
from torchft_x.core.commit.values import LocalVote, Outcome, Terms, misfit
from torchft_x.core.types import Ranges
from torchft_x.errors import CollectiveError, ConfigError, StepError
from torchft_x.rpc.transport.loop import Notifier
from torchft_x.train.context.context import RankContext
from torchft_x.train.heal.own_copy import before_asking
from torchft_x.train.heal.rehearsal import Rehearsal
from torchft_x.train.step.quorum_round import QuorumOptions, QuorumRole, QuorumRound
from torchft_x.train.step.reductions import LocalGradients, Reductions
from torchft_x.train.step.step_data import StepData
from torchft_x.train.step.vote import DecidedStep, StepVote


class StepLoop:
    """Runs a rank's steps through the five stages. Used by the training thread.

    Args:
        pg: the process group between the groups.
        waits: whether every round is awaited (synchronous quorums).
        redo: whether steps that failed are reduced again with the kept gradients.
        late: whether all votes come at the step's end.
        rehearse: whether the first step is made before this rank asks for a quorum.
    """

    def __init__(self, context: RankContext, pg: Any, *, waits: bool, redo: bool, late: bool, rehearse: bool) -> None:
        self.round: QuorumRound | None = None  # the newest round; None before the first
        self.role: QuorumRole | None = None  # standing in the newest quorum that came
        self.reductions = Reductions(context, pg, keeps=redo)
        self.rehearsal = Rehearsal(context, wanted=rehearse)
        self.data = StepData(context, self)  # samples of the current step, if they are dealt
        self._context = context
        self._vote = StepVote(context, self.data)
        self._options: QuorumOptions  # those of the newest step
        self.waits = waits  # every round is awaited; may be changed before the first
        self._late = late or not context.options.commit_vote  # this rank's script reduces after backward, or may
        self._background = Notifier(f"quorum-{context.options.replica_id}")  # runs rounds beside the training
        self._passed: DecidedStep | None = None  # the current step, if backward has decided to commit it
        self._ended: bool | None = None  # whether the step committed, if it ended inside backward with another quorum
        self._failed: Exception | None = None  # error that backward could not raise
        self._in_hand = False  # the quorum of the next step has come already

    # --- 1 and 2: ask, prepare ------------------------------------------------------------------------------------------

    def start(self, options: QuorumOptions) -> None:
        """Begin a step (`Manager.start_quorum`)."""
        c = self._context
        if not self.rehearsal.is_over and self.rehearsal.start(ordinary=options.allow_heal and not options.shrink_only):
            return
        self._options = options
        self._raise_if_ended()
        passed, self._passed = self._passed, None
        if passed is not None:
            self._throw_away(passed, "the next step was started without should_commit()")
        if self.round is not None and not self.round.at_once:
            self.round.wait_idle()
        self.reductions.clear()
        self._ended = self._failed = None
        whole = self.data.start() if c.step.data_options is not None else None
        in_hand, self._in_hand = self._in_hand, False
        c.committed.start_step(c.step.state, whole)
        if in_hand and c.step.error is None:
            self.need_round().exchange_state()
            return
        if c.memory is not None and c.memory.is_pending:
            before_asking(c, c.memory, copies=not self.data.trains_apart)
        with c.failures.lock:
            given_up = (c.step.quorum_id, c.step.top.step) if c.step.phase is StepPhase.RUNNING else None
            terms = c.step.ask()
        if given_up is not None:
            self._vote.abandon(*given_up)
        # A newcomer's forward on stale weights would be thrown away, and the heal could not write into the live tensors. At
        # step 0 all groups take one group's weights first, so that all of their gradients count.
        waits = self.waits or self.role is None or terms.state.step == 0 or c.committed.script_moves_them
        self.round = round = self._new_round(terms, waits=waits, keeps=False)
        at_once = round.continues()
        c.status.begin_step(story=not at_once)
        if at_once:
            self.wait_quorum()
        elif waits:
            round.run_inline()
            self.wait_quorum()
        else:
            self._background.post(round.run)

    def _new_round(self, terms: Terms, *, waits: bool, keeps: bool, held: Ranges = ()) -> QuorumRound:
        """Make the round that asks with `terms`. `waits`: the training thread waits for it."""
        return QuorumRound(
            self._context, terms, self._options, previous=self.role, in_place=waits,
            counts_after_heal=self.waits and self._options.allow_heal, keeps=keeps, held=held, votes_late=self._late,
        )  # fmt: skip

    def need_round(self) -> QuorumRound:
        """Return the newest round. Raises `StepError` before the first step."""
        if self.round is None:
            raise StepError(
                "no step was started: call manager.start_quorum(), or zero_grad() of torchft_x's Optimizer, first."
            )
        return self.round

    def wait_quorum(self) -> None:
        """Wait until the quorum and the process group are ready. Raises the error that kept them from coming."""
        if self.rehearsal.is_on:
            return
        round = self.need_round()
        if not round.at_once:
            round.wait_ready()
        self.role = round.role

    def close(self) -> None:
        self._background.close()

    def _raise_if_ended(self) -> None:
        if self._context.failures.ended is not None:
            self._context.failures.raise_if_ended()

    # --- 3: reduce -----------------------------------------------------------------------------------------------------

    def reduce(self, tensor: torch.Tensor, op: Any, fmt: Format | None = None, **quantized: Any) -> dist.Work:
        """Start a reduction (`Manager.allreduce`). `quantized` holds further arguments of `Reductions.reduce`."""
        self._raise_if_ended()
        if self.rehearsal.is_on:
            return DoneWork(tensor)
        self.wait_quorum()
        return self.reductions.reduce(tensor, op, fmt, possible=self._may_reduce(), **quantized)

    def sum_slots(self, out: torch.Tensor, values: Sequence[torch.Tensor], scratch: Scratch) -> dist.Work:
        """Start the sum of all slots of a reproducible step into `out`, which is flat.

        `values`: this rank's sums over the nodes of `core.data.reduction_tree` that its slots consist of.
        """
        self._raise_if_ended()
        if self.rehearsal.is_on:
            return DoneWork(out)
        self.wait_quorum()
        nodes, slots = self.data.nodes()
        return self.reductions.sum_slots(out, values, nodes, slots, scratch, possible=self._may_reduce())

    def scale(self) -> float | None:
        """Return the factor for this rank's gradients before the sum, without waiting.

        It is 1/participants, or 1/slots if the data is dealt; 0 if this rank contributes zeros; None while the quorum has
        not come.

        Raises `StepError` if no quorum was ever started: gradients would silently stay local.
        """
        if self.rehearsal.is_on:
            return 1.0
        if not self.need_round().ready.is_set():
            return None
        step = self._context.step
        with self._context.failures.lock:
            return step.scale()

    @property
    def decided(self) -> bool:
        """Whether the current step was decided inside backward."""
        return self._passed is not None or self._ended is not None or self._failed is not None

    def _may_reduce(self) -> bool:
        """Return whether a reduction is possible, and switch to late votes if the step is decided already."""
        if not self.decided:
            return True
        if not self._late:
            self._late = True
            self._context.log.info("this script reduces after backward: from now on groups vote at the step's end")
        return self._passed is not None and self._failed is None

    # --- 4 and 5: vote, end --------------------------------------------------------------------------------------------

    def reject_step(self, error: Exception, quorum_id: int | None = None) -> None:
        """Reject the current step for the script, unless `quorum_id` names another quorum than the step's.

        The step may have failed before for another reason.
        """
        if self.rehearsal.is_on:
            self.rehearsal.report(error)
            return
        failures = self._context.failures
        with failures.lock:
            if quorum_id is not None and quorum_id != self._context.step.quorum_id:
                return
            if isinstance(error, ConfigError):  # it would recur in each step
                failures.ended = failures.ended or error
        self.reductions.reject_step(error)
        if self._passed is not None:
            self._failed = self._failed or error
        failures.fail(error, quorum_id)

    def end_pass(
        self, kept: LocalGradients, works: int, good: bool, meanwhile: Callable[[], None] = lambda: None
    ) -> bool:
        """End a pass of `works` reductions that `kept` can repeat. Return whether `kept` must keep its gradients.

        This decides the step if that is possible, and reduces again with the next quorum if a reduction failed (`good`
        is False). It never raises in backward; the step's end does. `meanwhile` does work that is needed in any case
        while the other groups' votes are on their way; it must not fail, and may be called twice or never.
        """
        if self.rehearsal.is_on:
            return False
        if self._context.step.data_options is not None:
            self._reject_mistake(again=self.reductions.has(kept))
        wanted = self.reductions.keep(kept, works)
        with self._context.failures.lock:
            running = self._context.step.phase is StepPhase.RUNNING
        if self.decided or not running:
            return wanted
        try:
            if not (self._late or self.need_round().votes_late):
                self._ended = self._decide(self._context.options.group_timeout, early=True, meanwhile=meanwhile)
            elif not good:
                self._retry_after_backward()
        except Exception as e:
            self._context.log.warning("this step can't be ended: %s", e)
            self._failed = e
        return wanted

    def commit(self, limit: float) -> bool:
        """End the step (`Manager.should_commit`); `limit` is in seconds."""
        self._raise_if_ended()
        if self.rehearsal.is_on:
            self.rehearsal.end()
            return False
        if self._context.step.data_options is not None:
            self.wait_quorum()  # it deals the step's data
            self._reject_mistake()
            self._raise_if_ended()
        self._find_moved()
        committed = self._end(limit)
        if committed and self._context.awaits_commits:
            self._context.transport.before_commit()
        return committed

    def _reject_mistake(self, *, again: bool = False) -> None:
        mistake = self.data.mistake(reduced=bool(self.reductions.works), again=again)
        if mistake is not None:
            self.reject_step(mistake)

    def _find_moved(self) -> bool:
        """Return whether the script has moved the parameters since this step started."""
        committed = self._context.committed
        known, moved = committed.script_moves_them, committed.moved()
        if moved and not known:
            self._context.log.info(
                "this script changes its parameters inside a step: newcomers copy the state at the start of steps only, and "
                "a step that fails is computed again"
            )
        return moved

    def _end(self, limit: float) -> bool:
        passed, self._passed = self._passed, None
        failed, self._failed = self._failed, None
        if passed is not None:
            against = failed or self._failed_after(passed)
            if against is not None:
                return self._throw_away(passed, str(against))
            return self._conclude(passed.round, passed.vote, passed.decision, undecided=False).committed
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
        """Vote, and let the next quorum resolve the step if the vote does not pass. Return whether it is committed.

        Inside backward (`early`) None means that the vote passed: `_passed` then holds the step, which `_end` commits.
        """
        while True:
            round = self.need_round()
            self.wait_quorum()
            self.reductions.wait()
            if not round.at_once:
                round.wait_done()
            with self._context.failures.lock:
                vote = self._context.step.vote()
            decision = self._vote.decide(vote, [w.digest for w in self.reductions.works], limit, meanwhile)
            if early and decision.commit:
                self._passed = DecidedStep(round, vote, decision, len(self.reductions.works))
                return None
            undecided = decision.undecided or (not decision.commit and self._retries_in_step(round, vote, early=early))
            outcome = self._conclude(round, vote, decision, undecided=undecided)
            if not outcome.undecided:
                if outcome.give_up:
                    raise StepError(outcome.give_up)
                return outcome.committed
            decided = self._resolve(round, vote, early=early)
            if decided is not None:
                return decided

    def _failed_after(self, passed: DecidedStep) -> Exception | None:
        """Return the error of reductions that were issued after the decision; None if they succeeded."""
        bad = [w for w in self.reductions.works[passed.works :] if not w.wait()]
        if not bad:
            return None
        with self._context.failures.lock:
            return self._context.step.error or CollectiveError("a reduction failed")

    def _throw_away(self, passed: DecidedStep, why: str) -> bool:
        """Drop a step that the groups have decided to commit and the script rejects. Return False.

        Nothing has changed on this rank yet, so dropping is safe: to the others this group has failed in the step. It
        heals from groups that have committed; if none has, no group holds that state, and the step is computed again.
        """
        c = self._context
        told = "" if self._late else " From now on the groups vote when the step ends: Manager(vote_in_backward=False)."
        self._late = True
        c.log.warning(
            "step %s is thrown away after the groups had decided, at the end of backward(), to commit it: %s. If others "
            "have committed it, this group copies their state in the next step.%s", passed.vote.step, why, told,
        )  # fmt: skip
        decision = Decision(False, f"thrown away after it was decided: {why}")
        outcome = self._conclude(passed.round, passed.vote, decision, undecided=False)
        # Members that wait for this group in a collective of that quorum must fail at once.
        c.failures.fail(StepError(f"step {passed.vote.step} was {outcome.reason}"), passed.vote.quorum_id)
        if outcome.give_up:
            raise StepError(outcome.give_up)
        return False

    def _retry_after_backward(self) -> None:
        """Reduce the kept gradients again with the next quorum, if a reduction failed and repeating is allowed."""
        while True:
            with self._context.failures.lock:
                error, running = self._context.step.error, self._context.step.phase is StepPhase.RUNNING
            round = self.need_round()
            if not running or error is None or not self._may_retry(error, early=False):
                return
            round.wait_idle()  # a snapshot for others may be in progress
            with self._context.failures.lock:
                vote = self._context.step.vote()
            self._conclude(round, vote, Decision(False, str(error)), undecided=True)
            self._ended = self._resolve(round, vote, early=False)
            if self._ended is not None:
                return

    def _retries_in_step(self, round: QuorumRound, vote: LocalVote, *, early: bool) -> bool:
        """Return whether to ask for another quorum inside a step that did not pass.

        All ranks of a group must decide alike, whichever errors each has seen. In groups of several ranks the answer
        inside backward therefore depends on the quorum only.
        """
        if early and self._context.options.group_world_size > 1:
            return vote.enough_replicas and not round.heals
        return self._may_retry(vote.errored, early=early)

    def _may_retry(self, error: Exception | None, *, early: bool) -> bool:
        """Return whether this rank can reduce this step's gradients again. Several ranks can't agree on that late."""
        c = self._context
        with c.failures.lock:
            ready = c.step.may_redo and c.failures.ended is None
        alone = early or c.options.group_world_size == 1
        kept = self.need_round().computed is not None and self.reductions.may_repeat(error)
        return alone and ready and kept and not self._find_moved()

    def _conclude(self, round: QuorumRound, vote: LocalVote, decision: Decision, *, undecided: bool) -> Outcome:
        c = self._context
        with c.failures.lock:
            outcome = c.step.conclude(decision.commit, decision.reason, undecided=undecided)
        if outcome.undecided:
            c.log.info("step %s is undecided (%s): the next quorum says what becomes of it", vote.step, outcome.reason)
            # Nothing more is reduced in this quorum. Members that committed and wait in it must fail at once.
            c.failures.fail(StepError(f"step {vote.step} is undecided: {outcome.reason}"), vote.quorum_id)
        else:
            round.log_outcome(vote, outcome, self.reductions.take_sent(), self.reductions.took)
        if outcome.pause:  # without this check sleep(0) would give the GIL away once a step
            time.sleep(outcome.pause)
        return outcome

    def _resolve(self, before: QuorumRound, vote: LocalVote, *, early: bool) -> bool | None:
        """Ask for the quorum that resolves an undecided step.

        Return True if the step is committed after all, False if it is dropped, and None if its gradients were reduced
        again, successfully or not.
        """
        c = self._context
        moved = self._find_moved()  # if so, the next step exchanges the state
        keeps = self._may_retry(vote.errored, early=early)
        held = before.computed.slots or () if keeps and before.computed is not None else ()
        if not moved and c.memory is not None:
            before_asking(c, c.memory, copies=False)
        with c.failures.lock:
            terms = c.step.ask()
        c.status.publish()
        self.round = round = self._new_round(terms, waits=True, keeps=keeps, held=held)
        try:
            round.run_inline(exchange=False)
            self.wait_quorum()
        except Exception:
            with c.failures.lock:
                c.step.abandon_in_doubt()
            raise
        ended = round.ended
        if ended is not None and ended.committed:
            c.events.emit("adopt", step=ended.step, quorum=ended.quorum_id)
            before.log_outcome(vote, ended, self.reductions.take_sent(), self.reductions.took)
            self._in_hand = True  # the next `start` offers the state, after the optimizer has stepped
            return True
        if not moved:
            round.exchange_state()
        if not self._redoes(before, round, early=early):
            self._drop(before, vote, ended.reason if ended is not None else "")
            return False
        round.computed = before.computed
        c.events.emit("redo", step=vote.step, quorum=self.role.quorum.id if self.role else None)
        c.log.info("step %s: the same gradients are reduced again", vote.step)
        self.reductions.repeat()
        return None

    def _redoes(self, before: QuorumRound, round: QuorumRound, *, early: bool) -> bool:
        """Return whether the gradients of `before` are reduced again in `round`.

        All ranks of a group decide alike, because they hold the same quorums.
        """
        c = self._context
        if not round.again or round.heals or before.computed is None or round.role is None:
            return False
        part, kept = round.role.part, before.computed
        with c.failures.lock:
            deal = c.step.deal
        if not self.reductions.numbered and deal is None:
            kept = replace(kept, part=part)
        # Late scripts may have changed their gradients, so they compute for a new number.
        with c.failures.lock:
            again = c.step.may_redo_with(kept, part, all_keep=early)
        why = misfit(kept, part, deal, all_keep=early)
        if why:
            c.log.info("step %s is computed again: %s", kept.state.step, why)
        return again

    def _drop(self, before: QuorumRound, vote: LocalVote, why: str) -> None:
        """Drop an undecided step that is not reduced again. The quorum that came becomes that of the next step."""
        c = self._context
        with c.failures.lock:
            outcome = c.step.drop(vote, why)
        before.log_outcome(vote, outcome, self.reductions.take_sent(), self.reductions.took)
        self._in_hand = True
        if outcome.give_up:
            raise StepError(outcome.give_up)
