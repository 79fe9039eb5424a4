"""The votes on a step: inside the group, where rank 0 hears all ranks, and between the groups, where it speaks for them.

They compare results by a `digest`: a number that two tensors share only if their bits are the same, but for bad luck.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from torchft_x.comm.votes.ranks import Decision, Hub, RankVote, Spoke
from torchft_x.core import cross_group_vote
from torchft_x.core.commit.step import LocalVote
from torchft_x.core.messages.group import CrossVoteEnded, Vote
from torchft_x.core.training.memory_checkpoint import GroupWord, RankWord
from torchft_x.core.types import State
from torchft_x.errors import CollectiveError, DeadlineError
from torchft_x.rpc.codec.ranks import VoteReply
from torchft_x.rpc.group.client import GroupClient
from torchft_x.timing import TIMING
from torchft_x.train.context.context import RankContext
from torchft_x.train.step.quorum_round import QuorumRound

Meanwhile = Callable[[], None]

TURNS = 16  # a sixteenth of a large tensor is looked at each time
BLOCK_BYTES = 4096  # every sixteenth block of this size
WHOLE_BYTES = 1 << 20
"""What is smaller is looked at in whole: to pick out blocks costs as much, and it is read next anyway."""

_MASK = (1 << 64) - 1
_PRIME = 0x9E3779B97F4A7C15  # spreads what is folded in over all 64 bits
_WORDS = BLOCK_BYTES // 8


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
            torn, behind = c.step.torn, c.step.state != c.step.top
        copies = 0 if c.memory is None else c.memory.word(torn=torn, behind=behind).bits
        mine = RankVote(vote.quorum_id, vote.step, vote.ok, broken, digest, size, copies=copies)
        try:
            if c.connection.spoke is not None:
                return self._send_to_rank0(c.connection.spoke, mine, 2 * limit + TIMING.late_vote, meanwhile)
            if c.connection.hub is None:
                reply = self._vote_for_group({0: mine}, vote, limit, meanwhile)
                self._say_copies([mine], mine, reply)
                return reply
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

    def _send_to_rank0(self, spoke: Spoke, mine: RankVote, limit: float, meanwhile: Meanwhile) -> VoteReply:
        decision = spoke.vote(mine, limit, meanwhile)
        self._hear_copies(GroupWord.of(decision.copies), mine, commit=decision.commit)
        return VoteReply(decision.commit, decision.reason, prepared=decision.undecided)

    def _gather(self, hub: Hub, mine: RankVote, vote: LocalVote, limit: float, meanwhile: Meanwhile) -> VoteReply:
        """Hear the other ranks, and decide for all."""
        try:
            votes = {0: mine, **hub.gather(mine.quorum, mine.step, limit)}
            reply = self._vote_for_group(votes, vote, limit, meanwhile)
        except (CollectiveError, DeadlineError) as e:
            hub.decide(mine.quorum, mine.step, Decision(False, str(e)))
            if isinstance(e, DeadlineError) or self._context.failures.ended is not None:
                raise
            self._context.failures.fail(e, mine.quorum)  # a rank is gone: the other groups need not wait for this one
            return VoteReply(False, str(e))
        copies = self._say_copies(votes.values(), mine, reply)
        hub.decide(mine.quorum, mine.step, Decision(reply.commit, reply.reason, reply.prepared, copies))
        return reply

    # --- copies in memory ----------------------------------------------------------------------------------------------

    def _say_copies(self, votes: Collection[RankVote], mine: RankVote, reply: VoteReply) -> int:
        """Rank 0's word about copies of the state, as the decision carries it."""
        memory = self._context.memory
        if memory is None:
            return 0
        leads_to = mine.step + 1 if reply.commit else None
        word = memory.decide([RankWord.of(v.copies) for v in votes], leads_to, self._context.step_time.seconds)
        self._hear_copies(word, mine, commit=reply.commit)
        return word.bits

    def _hear_copies(self, word: GroupWord, mine: RankVote, *, commit: bool) -> None:
        memory = self._context.memory
        if memory is not None:
            memory.hear(word, State(mine.step + 1, mine.quorum) if commit else None)

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
        final = client.vote_for_all(
            [CrossVoteEnded(call, rank, vote.step, vote.quorum_id, not why) for rank in sorted(said)]
        )
        return VoteReply(final.commit, why or final.reason, prepared=not final.commit and reply.row is not None)

    def _vote_between_groups(self, reply: VoteReply, vote: LocalVote, limit: float, meanwhile: Meanwhile) -> str:
        """The vote between the groups; why it has not passed, as far as this rank knows. Empty: it has."""
        c = self._context
        try:
            limit = min(limit, c.waits.wait(time.monotonic(), connected=c.connection.link.connected))
            try:
                least = c.peers.all_min.least(cross_group_vote.row(reply.row), limit, meanwhile)
            finally:
                c.waits.work(time.monotonic())
        except Exception as e:
            c.failures.fail(e, vote.quorum_id)
            return f"the vote between the groups was not heard to the end: {e}"
        objection = cross_group_vote.objection(least)
        if not objection:
            return ""
        level = logging.ERROR if vote.ok else logging.INFO  # our own no is no news to us
        c.log.log(level, "step %s does not pass: %s", vote.step, objection)
        return f"the groups do not agree: {objection}"


def digest(tensor: torch.Tensor, turn: int | None = None) -> int:
    """64 bits, unsigned: the wrapping sum of the tensor's bytes read as int64. It guards against results that differ
    by accident (memory, a defect of a reduction), not against somebody who wants them to look alike.

    `turn` counts up from step to step (None: all of it, always). Of more than `WHOLE_BYTES` every sixteenth block is
    read, other ones each time, and what is left over behind the last sixteen. So what differs in 64 KiB on end is seen
    at once (gloo's pieces have up to 1 MiB), what goes on differing within 16 turns, and a single word that differs
    once with one chance in 16. Reading all of it costs 5 % of a step on a CPU (docs/decisions/0026).
    """
    words, rest = _words(tensor)
    if turn is None or tensor.nbytes <= WHOLE_BYTES:
        return (int(words.sum()) + rest) & _MASK
    rows = words.numel() // (TURNS * _WORDS)
    even = rows * TURNS * _WORDS
    place = words.storage_offset() + turn % TURNS * _WORDS
    total = int(words.as_strided((rows, _WORDS), (TURNS * _WORDS, 1), place).sum())
    if even < words.numel():
        total += int(words[even:].sum())
    return (total + rest) & _MASK


def fold(digests: list[int]) -> int:
    """One digest for several, in their order."""
    total = len(digests)
    for d in digests:
        total = ((total ^ d) * _PRIME + (total >> 29)) & _MASK
    return total


def _words(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The tensor's memory as int64, and the sum of the bytes behind it that fill no word."""
    data = tensor.detach() if tensor.requires_grad else tensor
    if data.dim() == 1 and data.is_contiguous() and (data.nbytes | data.storage_offset()) % 8 == 0:
        return data.view(torch.int64), 0  # as below, for what is usual
    if not data.is_contiguous():
        data = data.contiguous()
    raw = data.reshape(-1).view(torch.uint8)
    whole = raw.numel() // 8 * 8
    if raw.storage_offset() % 8:  # a view into the middle of a storage can't be read in words
        raw = raw.clone()
    return raw[:whole].view(torch.int64), int(raw[whole:].sum(dtype=torch.int64))
