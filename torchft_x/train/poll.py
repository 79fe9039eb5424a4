"""The votes on a step: inside the group, and between the groups if the group asks for that."""

from __future__ import annotations

from collections.abc import Callable

from torchft_x.core import crossvote
from torchft_x.core.messages import Crossed, Vote
from torchft_x.core.step import LocalVote
from torchft_x.rpc.rank_codec import VoteReply
from torchft_x.train.digest import fold
from torchft_x.train.parts import Parts


class Poll:
    """One rank's part in them."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def ask(
        self, vote: LocalVote, digests: list[int], limit: float, meanwhile: Callable[[], None] = lambda: None
    ) -> VoteReply:
        """What came of it, after at most `limit` seconds a round. `prepared` in the answer: the step is undecided.
        `meanwhile` may be called, once, while the other groups' votes are on their way.
        Raises what kept the group's answer from coming; then this rank knows nothing."""
        p = self._parts
        rank, client = p.options.group_rank, p.link.client
        digest = fold(digests) if vote.ok and p.options.commit_vote else 0
        with p.guard.lock:
            size, broken = p.step.size, p.step.error is not None
        try:
            reply = client.vote(
                Vote(client.next_call(), rank, vote.step, vote.quorum_id, vote.ok, digest, size, broken), limit
            )
            if not reply.prepared:
                return reply
            why = self._cross(reply, vote, limit, meanwhile)
            final = client.vote(Crossed(client.next_call(), rank, vote.step, vote.quorum_id, not why), limit)
        except Exception:
            with p.guard.lock:
                p.step.unknown()
            p.guard.raise_if_ended()
            raise
        return VoteReply(final.commit, why or final.reason, prepared=not final.commit and reply.row is not None)

    def _cross(self, reply: VoteReply, vote: LocalVote, limit: float, meanwhile: Callable[[], None]) -> str:
        """The vote between the groups; why it has not passed, as far as this rank knows. Empty: it has."""
        p = self._parts
        try:
            limit = min(limit, p.waiting.begin())
            try:
                least = p.lines.tally.least(crossvote.row(reply.row), limit, meanwhile)
            finally:
                p.waiting.end()
        except Exception as e:
            p.guard.fail(e, vote.quorum_id)
            return f"the vote between the groups was not heard to the end: {e}"
        objection = crossvote.objection(least)
        if not objection:
            return ""
        p.log.error("step %s does not pass: %s", vote.step, objection)
        return f"the groups do not agree: {objection}"
