"""The way of one rank through its steps: rounds, reductions, votes, and what becomes of a step that fails.

A step that fails is not lost while its local gradients are kept: the next quorum is asked for inside the same step, and
says which of these it is (protocol, section 5):

* another group may have committed it: then we commit the very same bits (*adopt*);
* nobody has: the local gradients are reduced again among those that are left (*redo*);
* we are behind, or have nothing to reduce: the step is dropped here, and the quorum that came is that of the next step.

Where a reduction fails inside backward, all of this happens there, so that clipping and unscaling see the final
gradients. What fails later can be reduced again only if nobody has touched the gradients since.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from torchft_x.core import crossvote
from torchft_x.core.messages import Crossed, Vote
from torchft_x.core.step import LocalVote, Outcome, Phase, Terms
from torchft_x.core.types import Quorum
from torchft_x.errors import CollectiveError, DeadlineError, StepError, TorchftXError, UnreachableError
from torchft_x.rpc.rank_codec import VoteReply
from torchft_x.train.background import Background
from torchft_x.train.digest import fold
from torchft_x.train.parts import Parts
from torchft_x.train.round import Round
from torchft_x.train.work import ManagedWork

# What a lost member or a broken connection looks like: the gradients are as good as before.
_TRANSPORT = (CollectiveError, DeadlineError, UnreachableError)


class Kept(Protocol):
    """Who holds the local gradients of a pass."""

    def intact(self) -> bool:
        """Whether they can be reduced again: they are kept, and nobody has touched their result."""

    def reduce_again(self) -> bool:
        """Reduce them in the quorum in hand. False: it failed, and was reported."""


class Course:
    """See the module. Used by the training thread.

    Args:
        next_round: makes the round that asks with these terms.
        waits: every round is awaited (synchronous quorums).
        redo: steps that failed are tried again with the gradients that are kept.
    """

    def __init__(
        self,
        parts: Parts,
        pg: Any,
        next_round: Callable[[Terms, Quorum | None, bool], Round],
        *,
        waits: bool,
        redo: bool,
    ) -> None:
        self.round: Round | None = None  # the newest; None before the first
        self.quorum: Quorum | None = None  # the newest that came
        self.works: list[ManagedWork] = []  # of the step in hand; awaited before the vote
        self._parts = parts
        self._pg = pg
        self._next_round = next_round  # see above
        self._waits = waits  # fixed
        self._redo = redo and parts.options.group_world_size == 1  # ranks would have to agree on it
        self._background = Background(f"torchft_x-quorum-{parts.options.replica_id}")
        self._kept: list[Kept] = []  # passes of the step in hand
        self._kept_works = 0  # reductions that belong to them
        self._ended: bool | None = None  # the step in hand ended inside backward: did it commit?
        self._in_hand = False  # the quorum of the next step has come already

    # --- begin --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a step. See `Manager.start_quorum`."""
        p = self._parts
        p.guard.raise_if_ended()
        if self.round is not None:
            self.round.wait_idle()
        self.works.clear()
        self._kept, self._kept_works, self._ended = [], 0, None
        in_hand, self._in_hand = self._in_hand, False
        if in_hand and p.step.error is None:
            self.need_round().finish()
            return
        with p.guard.lock:
            terms = p.step.ask()
        waits = self._waits or self.quorum is None or terms.state.step == 0
        self.round = round = self._next_round(terms, self.quorum, waits)
        if round.runs_on():
            self.wait_quorum()
        elif waits:
            round.run()
            self.wait_quorum()
        else:
            self._background.submit(round.run)

    def need_round(self) -> Round:
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

    def keep(self, kept: Kept, works: int) -> bool:
        """A pass ends: its newest `works` reductions can be done again by `kept`. False: its gradients aren't wanted."""
        again = kept in self._kept  # a second pass over the same parameters has added to the first one's result
        self._kept = [] if again else [*self._kept, kept]
        self._kept_works = 0 if again else self._kept_works + works
        return self._redo

    def close(self) -> None:
        self._background.close()

    # --- end ----------------------------------------------------------------------------------------------------------

    def commit(self, limit: float) -> bool:
        """End the step. See `Manager.should_commit`; `limit` in seconds."""
        if self._ended is not None:
            ended, self._ended = self._ended, None
            self.wait_quorum()
            return ended
        while True:
            round = self.need_round()
            self.wait_quorum()
            self._finish_reductions()
            round.wait_done()
            with self._parts.guard.lock:
                vote = self._parts.step.vote()
            reply = self._ask_group(vote, limit)
            undecided = reply.prepared or (not reply.commit and self._may_redo(vote.errored))
            outcome = self._settle(round, vote, reply, undecided=undecided)
            if not outcome.undecided:
                if outcome.give_up:
                    raise StepError(outcome.give_up)
                return outcome.committed
            decided = self._next_quorum(round, vote)
            if decided is not None:
                return decided

    def redo(self) -> bool:
        """A reduction of the pass that was kept last has failed: reduce it again with the next quorum. False: the step
        is as lost as it was."""
        while True:
            with self._parts.guard.lock:
                error, running = self._parts.step.error, self._parts.step.phase is Phase.RUNNING
            round = self.need_round()
            if not running or not self._may_redo(error):
                return False
            round.wait_idle()  # a snapshot for others may still be taken
            with self._parts.guard.lock:
                vote = self._parts.step.vote()
            self._settle(round, vote, VoteReply(False, str(error)), undecided=True)
            try:
                self._ended = self._next_quorum(round, vote)
            except TorchftXError as e:  # backward does not raise; the step's end will
                self._parts.log.warning("no next quorum: %s", e)
                return False
            if self._ended is not None:
                return False
            with self._parts.guard.lock:
                if self._parts.step.error is None:
                    return True

    def _may_redo(self, error: Exception | None) -> bool:
        """Whether this step's gradients are worth another quorum."""
        p = self._parts
        with p.guard.lock:
            ready = p.step.may_redo and p.guard.ended is None
        good = error is None or isinstance(error, _TRANSPORT)
        return ready and good and self._has_kept() and self.need_round().computed_at is not None

    def _has_kept(self) -> bool:
        """Whether the step can be reduced again unseen. All its reductions must be among the kept ones: a group that
        computes the step anew issues them all, in the same order."""
        whole = bool(self._kept) and self._kept_works == len(self.works)
        return self._redo and whole and all(k.intact() for k in self._kept)

    def _ask_group(self, vote: LocalVote, limit: float) -> VoteReply:
        """The votes: inside the group, and between the groups if it asks for that. `prepared` in the answer: the step
        is undecided."""
        p = self._parts
        rank, client = p.options.group_rank, p.link.client
        digest = fold([w.digest for w in self.works]) if vote.ok and p.options.commit_vote else 0
        with p.guard.lock:
            size, broken = p.step.size, p.step.error is not None
        try:
            reply = client.vote(Vote(0, rank, vote.step, vote.quorum_id, vote.ok, digest, size, broken), limit)
            if not reply.prepared:
                return reply
            why = self._cross(reply, vote, limit)
            final = client.vote(Crossed(0, rank, vote.step, vote.quorum_id, not why), limit)
        except Exception:
            with p.guard.lock:
                p.step.unknown()
            p.guard.raise_if_ended()
            raise
        return VoteReply(final.commit, why or final.reason, prepared=not final.commit and reply.row is not None)

    def _cross(self, reply: VoteReply, vote: LocalVote, limit: float) -> str:
        """The vote between the groups; why it has not passed, as far as this rank knows. Empty: it has."""
        row = torch.tensor(crossvote.row(reply.row), dtype=torch.int64)
        opts = dist.AllreduceOptions()
        opts.reduceOp = dist.ReduceOp.MIN
        try:
            self._pg.allreduce([row], opts).wait(timedelta(seconds=limit))
        except Exception as e:
            self._parts.guard.fail(e, vote.quorum_id)
            return f"the vote between the groups was not heard to the end: {e}"
        objection = crossvote.objection(row.tolist())
        if not objection:
            return ""
        self._parts.log.error("step %s does not pass: %s", vote.step, objection)
        return f"the groups do not agree: {objection}"

    def _settle(self, round: Round, vote: LocalVote, reply: VoteReply, *, undecided: bool) -> Outcome:
        p = self._parts
        with p.guard.lock:
            outcome = p.step.settle(reply.commit, reply.reason, undecided=undecided)
        if outcome.undecided:
            p.log.info("step %s is undecided (%s): the next quorum says what becomes of it", vote.step, outcome.reason)
        else:
            round.tell(vote, outcome)
        return outcome

    def _next_quorum(self, before: Round, vote: LocalVote) -> bool | None:
        """Ask for the quorum that decides. True: the step is committed after all; False: it is dropped; None: its
        gradients were reduced again, as far as that went."""
        p = self._parts
        with p.guard.lock:
            terms = p.step.ask()
        computed_at = before.computed_at
        self.round = round = self._next_round(terms, self.quorum, True)
        try:
            round.run(finish=False)
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
            again = self._has_kept() and not round.heals and p.step.redo(computed_at)
        if not again:
            with p.guard.lock:
                outcome = p.step.drop(vote, ended.reason if ended is not None else "")
            before.tell(vote, outcome)
            self._in_hand = True
            if outcome.give_up:
                raise StepError(outcome.give_up)
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

    def _finish_reductions(self) -> None:
        for managed in self.works:
            managed.wait()
        if torch.accelerator.is_available():
            torch.accelerator.current_stream().synchronize()  # so that asynchronous errors are seen before the vote
        error = self._pg.errored()
        if error is not None:
            self._parts.guard.fail(error)
