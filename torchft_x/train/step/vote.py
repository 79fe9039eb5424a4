"""The votes on a step: in the group, where rank 0 collects the ranks' votes, and between groups, where rank 0 votes.

The votes compare the step's results, and every few commits the state that it starts from (`CommittedState`). If states
differ, the step isn't committed, and groups whose state most others don't share copy it. They also compare the gradients of
a slot that several groups have computed (`core.commit.slot_check`). A group that computes wrong ones ends.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from torchft_x.comm.votes.ranks import Decision, Hub, RankVote, Spoke
from torchft_x.core import cross_group_vote
from torchft_x.core.commit.slot_check import CheckPhase, compared_slot
from torchft_x.core.commit.values import LocalVote
from torchft_x.core.heal import QuorumPlan
from torchft_x.core.messages.group import CrossVoteEnded, GroupVote, VoteReply
from torchft_x.core.training.memory_checkpoint import CopyDecision, CopyVote
from torchft_x.core.types import State, readable
from torchft_x.errors import CollectiveError, DeadlineError, FaultyError, TorchftXError
from torchft_x.rpc.group.shell import GroupShell
from torchft_x.timing import TIMING
from torchft_x.train.context.context import RankContext
from torchft_x.train.context.tensor_digest import fold
from torchft_x.train.step.quorum_round import QuorumRound
from torchft_x.train.step.step_data import StepData

Meanwhile = Callable[[], None]

_WRONG_MOST = 3
_WRONG_AGAIN = (
    f"{_WRONG_MOST} comparisons in a row have found this group's parameters or optimizer state wrong (now {{tensor}}), although it had "
    "copied the others' in between. Its hardware may compute other results, its optimizer may not be deterministic, or "
    "load_state_dict may lose something, such as a moment's dtype. This group ends. If groups may differ, give all Managers "
    "compare_states=False."
)
_FAULTY = (
    "From the same parameters and samples as other groups this group has computed another gradient, in step {step}. Its host {host} "
    "probably computes wrong results: check its processors and memory before you train there again. This group ends and is not "
    "restarted."
)


@dataclass(frozen=True)
class DecidedStep:
    """A step that the groups have decided to commit, before the optimizer has stepped."""

    round: QuorumRound
    vote: LocalVote
    decision: Decision
    works: int  # number of reductions that were voted on; later ones come too late


class StepVote:
    """Votes for one rank, in its group and, on rank 0, between the groups."""

    def __init__(self, context: RankContext, data: StepData) -> None:
        self._context = context
        self._data = data
        self._wrong = 0  # number of comparisons in a row that found this group's state wrong

    def decide(
        self, vote: LocalVote, digests: list[int], limit: float, meanwhile: Meanwhile = lambda: None
    ) -> Decision:
        """Vote, and return the outcome after at most `limit` seconds a round.

        `digests` are those of the results. `meanwhile` may be called, once, while votes are on their way. Raises the
        error that kept the group's answer from coming; this rank then doesn't know the outcome.
        """
        c = self._context
        digest = fold(digests) if vote.ok and c.options.commit_vote else 0
        with c.failures.lock:
            size, broken = c.step.size, c.step.error is not None
            torn, behind = c.step.torn, c.step.state != c.step.top
        copies = 0 if c.memory is None else c.memory.vote(torn=torn, behind=behind)
        state = c.committed.digest() if vote.ok and c.options.commit_vote else 0
        slot = self._data.digest() if vote.ok and self._data.check is not None else 0
        mine = RankVote(vote.quorum_id, vote.step, vote.ok, broken, digest, size, copies=copies, state=state, slot=slot)
        try:
            if c.connection.spoke is not None:
                decision = self._send_to_rank0(c.connection.spoke, mine, 2 * limit + TIMING.late_vote, meanwhile)
            elif c.connection.hub is None:
                decision = self._vote_for_group({0: mine}, vote, limit, meanwhile)
                self._decide_copies([mine], mine, commit=decision.commit)
            else:
                decision = self._gather(c.connection.hub, mine, vote, limit, meanwhile)
            self._carry_out(decision)
        except Exception:
            with c.failures.lock:
                c.step.decision_lost()
            c.failures.raise_if_ended()
            raise
        if decision.commit and state:
            self._wrong = 0
        return decision

    def abandon(self, quorum: int, step: int) -> None:
        """Report to the group's other ranks that this rank gave the step up and won't vote, so that they don't wait."""
        link = self._context.connection
        if link.hub is not None:
            why = f"group rank 0 asked for a new quorum instead of voting on step {step}."
            link.hub.decide(quorum, step, Decision(False, why))
        elif link.spoke is not None:
            link.spoke.leave(quorum, step)

    # --- inside the group ---------------------------------------------------------------------------------------------

    def _send_to_rank0(self, spoke: Spoke, mine: RankVote, limit: float, meanwhile: Meanwhile) -> Decision:
        self._context.status.publish()
        decision = spoke.vote(mine, limit, meanwhile)
        if self._context.memory is not None:
            self._context.memory.receive(CopyDecision(decision.copies), _next_state(mine, commit=decision.commit))
        return decision

    def _gather(self, hub: Hub, mine: RankVote, vote: LocalVote, limit: float, meanwhile: Meanwhile) -> Decision:
        """Collect the other ranks' votes, decide for the group, and send the decision to them."""
        self._context.status.publish()
        try:
            votes = {0: mine, **hub.gather(mine.quorum, mine.step, limit)}
            decision = self._vote_for_group(votes, vote, limit, meanwhile)
        except (CollectiveError, DeadlineError) as e:
            decision = Decision(False, str(e))
            hub.decide(mine.quorum, mine.step, decision)
            if isinstance(e, DeadlineError) or self._context.failures.ended is not None:
                raise
            self._context.failures.fail(e, mine.quorum)  # a rank is gone: the other groups must not wait for this group
            return decision
        copies = self._decide_copies(votes.values(), mine, commit=decision.commit)
        hub.decide(mine.quorum, mine.step, decision._replace(copies=copies))
        return decision

    # --- copies in memory ----------------------------------------------------------------------------------------------

    def _decide_copies(self, votes: Collection[RankVote], mine: RankVote, *, commit: bool) -> int:
        """Decide for the group about copies of the state in memory. Return the bits that the decision carries."""
        c = self._context
        if c.memory is None:
            return 0
        state = _next_state(mine, commit=commit)
        decision = c.memory.decide([CopyVote(v.copies) for v in votes], state, c.step_time.seconds)
        c.memory.receive(decision, state)
        return decision

    # --- comparisons --------------------------------------------------------------------------------------------------

    def _carry_out(self, found: Decision) -> None:
        """Carry out what the comparison has found, on each rank of a group alike. Raises `FaultyError` in a faulty group."""
        c, check = self._context, self._data.check
        if found.disputed and check is not None:
            check.advance(c.step.top)
            with c.failures.lock:
                c.step.forbid_redo()
        if found.faulty:
            plan = c.failures.plan
            host = plan.hosts[plan.replica_rank] if plan is not None else ""
            c.failures.ended = c.failures.ended or FaultyError(_FAULTY.format(step=c.step.top.step, host=host))
            c.failures.raise_if_ended()
        if found.differ:
            if check is not None:
                check.reset()
            self._states_differ(refuted=found.wrong)

    def _states_differ(self, *, refuted: bool) -> None:
        """Log the first difference between the groups' states, and refute this group's state if it is wrong."""
        c = self._context
        try:
            first = c.committed.first_difference(c.peers.pg, c.options.timeout)
        except Exception as e:  # the step fails in any case
            c.log.warning("which tensor differs can't be found out: %s", e)
            first = ""
        if first:
            self._report(f"the first tensor that differs on this rank is {first}")
        if not refuted:
            return
        self._wrong += 1
        with c.failures.lock:
            c.step.mark_divergent()
            if self._wrong == _WRONG_MOST:
                c.failures.ended = c.failures.ended or FaultyError(
                    _WRONG_AGAIN.format(tensor=first or "another rank's")
                )
        if c.memory is not None:
            c.memory.drop()  # its copies hold the wrong state too

    def _call_roll(self, mine: tuple[int, int], limit: float) -> Decision:
        """Find the groups whose state, or gradient of the compared slot, is wrong. `mine`: this group's digests of both.

        All members must call it after the same vote, because each one sends its digests in its turn of this roll call.
        """
        c, plan = self._context, self._context.failures.plan
        assert plan is not None, "it has voted in a quorum"
        states, slots = [], {}
        for member, replica_id in enumerate(plan.replica_ids):
            row = cross_group_vote.roll_call_row(*(mine if member == plan.replica_rank else (0, 0)))
            state, slots[replica_id] = cross_group_vote.roll_call_answer(c.peers.all_min.minimum(row, limit))
            states.append(state)
        # A member that leaves asks for the next quorum, which ends the turns of those that are still in this one.
        with contextlib.suppress(TorchftXError):
            c.peers.all_min.minimum(cross_group_vote.roll_call_row(0, 0), limit)
        wrong = cross_group_vote.wrong_states(states)
        if not wrong:
            return self._judge_slots(plan, slots)
        right = sum(map(bool, states)) - len(wrong)
        who = _listed(plan, [plan.replica_ids[member] for member in wrong])
        others = f"those of {right} others" if right > 1 else "that of another, and no majority says which is right"
        self._report(f"the parameters or optimizer state of {who} differ from {others}: {who} copies them")
        why = "the members hold different parameters or optimizer states"
        return Decision(False, why, differ=True, wrong=plan.replica_rank in wrong, disputed=self._is_disputed)

    @property
    def _is_disputed(self) -> bool:
        """Whether gradients have differed in this step, so that all groups compute the compared slot."""
        check = self._data.check
        return check is not None and check.phase(self._context.step.top) is CheckPhase.ALL

    def _judge_slots(self, plan: QuorumPlan, digests: dict[str, int]) -> Decision:
        """Report which groups compute wrong gradients, as far as the members' digests show it."""
        step, check, differ = self._context.step, self._data.check, len(set(filter(None, digests.values()))) > 1
        if check is None or step.data_options is None:
            return Decision(True)
        phase, verdict = check.phase(step.top), check.report(step.top, digests)
        if not differ and phase is not CheckPhase.ALL:
            return Decision(True)
        slot = f"slot {compared_slot(step.top, step.data_options)} of step {step.top.step}"
        who = _listed(plan, [replica_id for replica_id, digest in digests.items() if digest])
        if verdict.wrong:
            others = f"{verdict.right} others" if verdict.right > 1 else "another"
            why = f"{_listed(plan, verdict.wrong)} computes wrong gradients: that of {slot} differs from that of {others}, "
            why += "computed from the same parameters and samples. The faulty group ends and is not restarted"
        elif phase is CheckPhase.PAIR:
            why = f"{who} have computed different gradients of {slot}: the step is computed again, and that slot by all groups"
        else:
            why = f"{who} have computed different gradients of {slot}, and no majority says which is right; "
            why += "more groups would say it, unless their hardware differs or their kernels are not deterministic. Training goes on"
        self._report(why)
        why = "members have computed different gradients of one slot" if differ else ""
        faulty = plan.replica_ids[plan.replica_rank] in verdict.wrong
        return Decision(not differ, why, disputed=True, faulty=faulty)

    def _report(self, why: str) -> None:
        c = self._context
        c.log.error("%s", why)
        c.events.emit("error", quorum=c.step.quorum_id, step=c.step.top.step, reason=why)

    # --- for the group ------------------------------------------------------------------------------------------------

    def _vote_for_group(
        self, said: dict[int, RankVote], vote: LocalVote, limit: float, meanwhile: Meanwhile
    ) -> Decision:
        """Return the group's outcome from all its ranks' votes: prepare first (R12), then vote between the groups."""
        shell = self._context.connection.link
        assert isinstance(shell, GroupShell), "only rank 0 speaks for its group"
        votes = sorted(said.items())
        reply = shell.vote(
            GroupVote(
                vote.step, vote.quorum_id, tuple(rank for rank, v in votes if not v.ok),
                tuple(v.digest for _, v in votes), said[0].contributors, any(v.broken for _, v in votes),
            )
        )  # fmt: skip
        if not reply.prepared:
            left = ", ".join(str(rank) for rank, v in said.items() if v.left)
            why = f"group rank {left} asked for a new quorum instead of voting on step {vote.step}."
            return Decision(reply.commit, why if left else reply.reason)
        state, slot = (fold(d) if all(d) else 0 for d in ([v.state for _, v in votes], [v.slot for _, v in votes]))
        found = self._vote_between_groups(reply, vote, (state, slot), limit, meanwhile)
        refuted = found.disputed and not found.commit
        final = shell.vote(CrossVoteEnded(vote.step, vote.quorum_id, found.commit, refuted))
        undecided = not (final.commit or refuted) and reply.row is not None
        return found._replace(commit=final.commit, reason=found.reason or final.reason, undecided=undecided)

    def _vote_between_groups(
        self, reply: VoteReply, vote: LocalVote, mine: tuple[int, int], limit: float, meanwhile: Meanwhile
    ) -> Decision:
        """Return whether the vote between the groups passed, as far as this rank knows.

        `mine`: digests of this group's state and of its gradient of the compared slot.
        """
        c, found, check = self._context, Decision(True), self._data.check
        mine = (0, 0) if reply.row is None else mine
        try:
            limit = min(limit, c.waits.start_wait(time.monotonic(), connected=c.connection.link.connected))
            try:
                row = cross_group_vote.row(reply.row, mine[0] or mine[1], calls=self._is_disputed)
                minimum = c.peers.all_min.minimum(row, limit, meanwhile)
                if check is not None:
                    mine = (mine[0], check.digest(c.step.top, mine[1]))
                if cross_group_vote.roll_call_follows(minimum):
                    found = self._call_roll(mine, limit)
            finally:
                c.waits.end_wait(time.monotonic())
        except Exception as e:
            c.failures.fail(e, vote.quorum_id)
            return Decision(False, f"the vote between the groups was not heard to the end: {e}")
        objection = found.reason or cross_group_vote.objection(minimum)
        if not objection:
            return found
        level = logging.ERROR if vote.ok else logging.INFO  # this rank's own no was logged before
        c.log.log(level, "step %s does not pass: %s", vote.step, objection)
        return found._replace(commit=False, reason=f"the groups do not agree: {objection}")


def _next_state(mine: RankVote, *, commit: bool) -> State | None:
    """Return the state that the commit leads to; None if nothing is committed."""
    return State(mine.step + 1, mine.quorum) if commit else None


def _listed(plan: QuorumPlan, replica_ids: Collection[str]) -> str:
    """Return the names of groups for people, with the hosts of those that are there."""
    hosts = dict(zip(plan.replica_ids, plan.hosts, strict=True))
    return " and ".join(readable(r) + (f" ({hosts[r]})" if hosts.get(r) else "") for r in replica_ids)
