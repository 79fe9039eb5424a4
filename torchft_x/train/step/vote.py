"""The votes on a step: inside the group, where rank 0 hears all ranks, and between the groups, where it speaks for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchft_x.comm.votes.ranks import Decision, Hub, RankVote, Spoke
from torchft_x.core import cross_group_vote
from torchft_x.core.commit.step import LocalVote
from torchft_x.core.messages.group import Crossed, Vote
from torchft_x.errors import CollectiveError, DeadlineError
from torchft_x.rpc.codec.ranks import VoteReply
from torchft_x.rpc.group.client import GroupClient
from torchft_x.train.context.context import RankContext
from torchft_x.train.context.digest import fold
from torchft_x.train.step.quorum_round import QuorumRound

Meanwhile = Callable[[], None]

_MARGIN = 1.0  # seconds over rank 0's own deadlines that another rank waits for it


@dataclass(frozen=True)
class Passed:
    """The groups have decided to commit, and the optimizer has not stepped yet."""

    round: QuorumRound
    vote: LocalVote
    reply: VoteReply
    works: int  # reductions it was about; those after them come too late


class StepVote:
    """One rank's part in them."""

    def __init__(self, context: RankContext) -> None:
        self._context = context

    def decide(
        self, vote: LocalVote, digests: list[int], limit: float, meanwhile: Meanwhile = lambda: None
    ) -> VoteReply:
        """What came of it, after at most `limit` seconds a round. `prepared` in the answer: the step is undecided.
        `meanwhile` may be called, once, while votes are on their way.
        Raises what kept the group's answer from coming; then this rank knows nothing."""
        c = self._context
        digest = fold(digests) if vote.ok and c.options.commit_vote else 0
        with c.failures.lock:
            size, broken = c.step.size, c.step.error is not None
        mine = RankVote(vote.quorum_id, vote.step, vote.ok, broken, digest, size)
        try:
            if c.connection.spoke is not None:
                return self._send_to_rank0(c.connection.spoke, mine, 2 * limit + _MARGIN, meanwhile)
            if c.connection.hub is None:
                return self._vote_for_group({0: mine}, vote, limit, meanwhile)
            return self._gather(c.connection.hub, mine, vote, limit, meanwhile)
        except Exception:
            with c.failures.lock:
                c.step.unknown()
            c.failures.raise_if_ended()
            raise

    def abandon(self, quorum: int, step: int) -> None:
        """This rank has given the step up, and votes no more: those of its group that do need not wait for it."""
        link = self._context.connection
        if link.hub is not None:
            why = f"group rank 0 asked for a new quorum instead of voting on step {step}."
            link.hub.decide(quorum, step, Decision(False, why))
        elif link.spoke is not None:
            link.spoke.leave(quorum, step)

    # --- inside the group ---------------------------------------------------------------------------------------------

    @staticmethod
    def _send_to_rank0(spoke: Spoke, mine: RankVote, limit: float, meanwhile: Meanwhile) -> VoteReply:
        decision = spoke.vote(mine, limit, meanwhile)
        return VoteReply(decision.commit, decision.reason, prepared=decision.undecided)

    def _gather(self, hub: Hub, mine: RankVote, vote: LocalVote, limit: float, meanwhile: Meanwhile) -> VoteReply:
        """Hear the other ranks, and decide for all."""
        try:
            reply = self._vote_for_group({0: mine, **hub.gather(mine.quorum, mine.step, limit)}, vote, limit, meanwhile)
        except (CollectiveError, DeadlineError) as e:
            hub.decide(mine.quorum, mine.step, Decision(False, str(e)))
            if isinstance(e, DeadlineError) or self._context.failures.ended is not None:
                raise
            self._context.failures.fail(e, mine.quorum)  # a rank is gone: the other groups need not wait for this one
            return VoteReply(False, str(e))
        hub.decide(mine.quorum, mine.step, Decision(reply.commit, reply.reason, reply.prepared))
        return reply

    # --- for the group ------------------------------------------------------------------------------------------------

    def _vote_for_group(
        self, said: dict[int, RankVote], vote: LocalVote, limit: float, meanwhile: Meanwhile
    ) -> VoteReply:
        """What the group makes of all its ranks' votes: prepared first (R12), then the vote between the groups."""
        client = self._context.connection.client
        assert not isinstance(client, GroupClient), "only rank 0 speaks for its group"
        call = client.next_call()
        reply = client.vote_for_all(
            [
                Vote(call, rank, v.step, v.quorum, v.ok, v.digest, v.contributors, v.broken)
                for rank, v in sorted(said.items())
            ]
        )
        if not reply.prepared:
            left = ", ".join(str(rank) for rank, v in said.items() if v.left)
            why = f"group rank {left} asked for a new quorum instead of voting on step {vote.step}."
            return VoteReply(reply.commit, why) if left else reply
        why = self._vote_between_groups(reply, vote, limit, meanwhile)
        call = client.next_call()
        final = client.vote_for_all([Crossed(call, rank, vote.step, vote.quorum_id, not why) for rank in sorted(said)])
        return VoteReply(final.commit, why or final.reason, prepared=not final.commit and reply.row is not None)

    def _vote_between_groups(self, reply: VoteReply, vote: LocalVote, limit: float, meanwhile: Meanwhile) -> str:
        """The vote between the groups; why it has not passed, as far as this rank knows. Empty: it has."""
        c = self._context
        try:
            limit = min(limit, c.waits.begin())
            try:
                least = c.peers.all_min.least(cross_group_vote.row(reply.row), limit, meanwhile)
            finally:
                c.waits.end()
        except Exception as e:
            c.failures.fail(e, vote.quorum_id)
            return f"the vote between the groups was not heard to the end: {e}"
        objection = cross_group_vote.objection(least)
        if not objection:
            return ""
        c.log.error("step %s does not pass: %s", vote.step, objection)
        return f"the groups do not agree: {objection}"
