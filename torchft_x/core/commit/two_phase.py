"""Two-phase commit of a group: the vote of its ranks, its promise to the other groups, and the vote between groups.

Without the vote between groups there is one round: if all ranks vote yes and the lease is valid, the group commits. With
it there are two rounds. When all ranks hold the result, the group is *prepared* and reports that to the others. Rank 0
then votes between groups for its group, and the group commits when that vote has passed. In between the group must keep
the result: another group may have seen the vote pass and have committed (R12-R14).
"""

from __future__ import annotations

import hashlib

from torchft_x.core.cross_group_vote import CrossVote
from torchft_x.core.messages.group import (
    CrossVoteEnded,
    FailCalls,
    GroupEffect,
    GroupVote,
    Vote,
    VoteReply,
)
from torchft_x.core.types import Prepared, Quorum

# Largest number of quorums remembered for one state; the oldest are forgotten.
_CARRIED = 256


class ShouldCommitVote:
    """Vote of ranks that run torchft, which vote one by one and name no quorum. It passes if all say yes in time.

    All ranks are answered at once. A vote on another step than the open vote's is refused. A late or repeated vote is
    answered with the decision, so that all ranks decide alike (I2).
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._step: int | None = None  # step of the vote in hand; None before its first vote
        self._votes: dict[int, bool] = {}  # rank -> its vote; a "no" stays a no
        self._calls: dict[int, int] = {}  # rank -> call that waits for the answer
        self._outcome: tuple[bool, str] | None = None  # decision, and the reason of a no; None while undecided

    def __repr__(self) -> str:
        return f"<ShouldCommitVote step={self._step} votes={self._votes} {self._outcome or 'open'}>"

    def open(self) -> list[GroupEffect]:
        """Open a vote for a new quorum. Answer the ranks that still wait for the old vote with a no."""
        effects = self.cancel("the group has moved on to the next quorum.")
        self._step, self._votes, self._outcome = None, {}, None
        return effects

    def vote(self, vote: Vote, late: str) -> list[GroupEffect]:
        """Take one rank's vote. `late`: why nothing may be committed at this instant (R13), or ''."""
        if not 0 <= vote.rank < self._world_size:
            why = f"group rank {vote.rank} is outside this group of {self._world_size} ranks."
            return [VoteReply(False, why, calls=(vote.call,))]
        if (
            self._outcome is not None
            and self._step is not None
            and (vote.step > self._step or vote.rank in self._votes)
        ):
            self._step, self._votes, self._outcome = None, {}, None  # a client may vote on one step twice
        if self._step not in (None, vote.step):
            why = f"group rank {vote.rank} votes on step {vote.step}, but the vote in hand is on step {self._step}."
            return [VoteReply(False, why, calls=(vote.call,))]
        self._step = vote.step
        self._votes[vote.rank] = vote.ok and self._votes.get(vote.rank, True)
        if self._outcome is not None:
            return [VoteReply(*self._outcome, calls=(vote.call,))]
        effects: list[GroupEffect] = []
        if vote.rank in self._calls:
            text = f"group rank {vote.rank} has voted on step {vote.step} again, from another call."
            effects.append(FailCalls((self._calls[vote.rank],), text, retry=False))
        self._calls[vote.rank] = vote.call
        if len(self._votes) == self._world_size:
            why = _against([rank for rank, ok in self._votes.items() if not ok], vote.step) or late
            self._outcome = (not why, why)
            effects += self._answer()
        return effects

    def cancel(self, reason: str) -> list[GroupEffect]:
        """Decide the vote in hand against the commit (the quorum is over, a rank has gone) and answer at once."""
        self._outcome = self._outcome or (False, reason)
        return self._answer()

    def release(self, asking: frozenset[int]) -> list[GroupEffect]:
        """Cancel the vote if ranks wait for the votes of ranks that ask for the next quorum and no longer vote."""
        gone = sorted(asking.difference(self._votes)) if self._calls else []
        return self.cancel(f"group rank {_listed(gone)} asked for a new quorum instead of voting.") if gone else []

    def gone(self, call: int) -> None:
        """Withdraw the undecided vote of a call that has ended: its rank can't learn the outcome."""
        for rank, waiting in list(self._calls.items()):
            if waiting == call:
                del self._calls[rank], self._votes[rank]

    def _answer(self) -> list[GroupEffect]:
        assert self._outcome is not None
        calls = tuple(self._calls[rank] for rank in sorted(self._calls))
        self._calls.clear()
        return [VoteReply(*self._outcome, calls=calls)] if calls else []


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def _against(ranks: list[int], step: int) -> str:
    return f"group rank {_listed(sorted(ranks))} voted against step {step}." if ranks else ""


class TwoPhaseCommit:
    """Two-phase commit of one group. `between_groups` is whether groups vote with each other."""

    def __init__(self, replica_id: str, *, between_groups: bool) -> None:
        self._replica_id = replica_id  # never changes
        self._between_groups = between_groups  # never changes
        self.prepared: Prepared | None = None  # result that another group may have committed
        # Quorums carried since the present state. They prove which results were not committed.
        self.carried: tuple[int, ...] = ()
        self._quorum_id = 0  # quorum in hand
        self._carrier = False  # whether this group holds the quorum's newest state, so that its vote is needed
        self._step: int | None = None  # step on which the groups vote; None: they do not
        self._abstains = ""  # reason why this group will not commit, though it takes part in the vote

    def __repr__(self) -> str:
        return f"<TwoPhaseCommit quorum={self._quorum_id} step={self._step} {self.prepared}>"

    def open(self, quorum: Quorum) -> Prepared | None:
        """Begin with a new quorum. Return the result that this group must commit first (R14)."""
        self._quorum_id, self._step = quorum.id, None
        if not self._between_groups:
            return None
        settled = quorum.settled
        held, self.prepared = self.prepared, None
        mine = quorum.member(self._replica_id)
        whole = held is not None and mine is not None and not mine.torn  # if torn, not all ranks hold the result
        commit = held if whole and (settled.adopted == held or self._replica_id in settled.late) else None
        self._carrier = any(m.replica_id == self._replica_id for m in settled.carriers)
        if commit is not None:
            self.carried = ()
        if self._carrier:
            self.carried = (*self.carried, quorum.id)[-_CARRIED:]
        return commit

    def state_replaced(self) -> None:
        """Reset after the group's state has changed by a heal or a checkpoint, not by a commit."""
        self.prepared = None
        self.carried = ()

    def vote(self, vote: GroupVote, late: str) -> VoteReply:
        """Take the votes of all ranks. Answer with the decision, or the start of the vote between groups.

        `late`: why nothing may be committed at this instant (R13), or ''.
        """
        if vote.quorum_id != self._quorum_id:
            in_hand = f"quorum {self._quorum_id}" if self._quorum_id else "no quorum"
            return VoteReply(False, f"the group votes in quorum {vote.quorum_id}, but holds {in_hand}.")
        why = _against(list(vote.against), vote.step) or late
        if not self._between_groups or (why and vote.broken):
            return VoteReply(not why, why)
        # Its collectives are complete, so the others wait for it in the vote. A carrier votes no, a healer not at all (R13).
        self._step, self._abstains = vote.step, why
        if not self._carrier:
            return VoteReply(False, prepared=True)
        row = CrossVote(False, self._quorum_id, vote.step + 1, 0, 0)
        if not why:
            digest = _digest(vote.digests)
            self.prepared = Prepared(self._quorum_id, vote.step + 1, digest)  # set before the vote is sent (R12)
            row = CrossVote(True, self._quorum_id, vote.step + 1, digest, vote.contributors)
        return VoteReply(False, prepared=True, row=row)

    def cross_vote_ended(self, event: CrossVoteEnded, late: str) -> VoteReply:
        """Take the result of the vote between groups. The lease is checked last, at the commit itself (R13)."""
        if (event.step, event.quorum_id) != (self._step, self._quorum_id):
            return VoteReply(False, f"no vote between groups on step {event.step} is under way.")
        self._step = None
        self.prepared = None if event.refuted else self.prepared
        why = self._abstains or ("" if event.ok else "the vote between groups has not passed.") or late
        return VoteReply(not why, why)

    def committed(self) -> None:
        """Record that the group has committed the step in hand."""
        self.prepared = None
        self.carried = (self._quorum_id,) if self._carrier and self._between_groups else ()


def _digest(digests: tuple[int, ...]) -> int:
    """Return one digest over all ranks' digests, because rank 0 votes for all of them."""
    if len(digests) == 1:
        return digests[0]
    data = b"".join(d.to_bytes(8, "big") for d in digests)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
