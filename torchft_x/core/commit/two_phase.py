"""How a group comes to commit: the vote inside the group, what it promises the other groups, and the vote among them.

Without the vote between groups there is one round: all ranks say yes, the lease is valid, the group commits. With it
there are two (protocol, section 5): when all ranks hold the result the group is *prepared* and says so to the others;
each rank then takes part in the vote between groups, and the group commits when it passed on every rank. In between
the group may not forget the result: another group may have seen the vote pass and have committed (R12-R14).
"""

from __future__ import annotations

import hashlib

from torchft_x.core.commit.group_vote import GroupVote
from torchft_x.core.cross_group_vote import CrossVote
from torchft_x.core.messages.group import AnswerPrepared, AnswerVote, Crossed, GroupEffect, Vote
from torchft_x.core.types import Prepared, Quorum

# A group that stood still at one state through more quorums than this forgets the oldest.
_CARRIED = 256


class TwoPhaseCommit:
    """Part of a group. `between_groups`: whether groups vote with each other."""

    def __init__(self, replica_id: str, world_size: int, *, between_groups: bool) -> None:
        self._replica_id = replica_id  # fixed
        self._enabled = between_groups  # fixed
        self._between_groups = between_groups  # in the quorum in hand: a peer's client knows no such vote
        self._local = GroupVote(world_size)  # all ranks hold the result
        self._final = GroupVote(world_size)  # the vote between groups has passed on all ranks
        self.prepared: Prepared | None = None  # a result that another group may have committed
        self.carried: tuple[int, ...] = ()  # quorums carried since the present state; proves what was not committed
        self._quorum_id = 0  # quorum in hand
        self._carrier = False  # whether this group holds its newest state, so that its vote is needed
        self._step: int | None = None  # that the local votes below are about
        self._votes: dict[int, Vote] = {}  # rank -> its newest vote on that step
        self._abstains = ""  # why this group will not commit, though it takes part in the vote

    def __repr__(self) -> str:
        return f"<TwoPhaseCommit local={self._local} final={self._final} {self.prepared}>"

    @property
    def between_groups(self) -> bool:
        return self._between_groups

    def open(self, quorum: Quorum) -> tuple[list[GroupEffect], Prepared | None]:
        """A quorum is in hand. Also returned: the result this group commits before anything else (R14)."""
        effects = [*self._local.open(quorum.id), *self._final.open(quorum.id)]
        self._quorum_id, self._step, self._abstains = quorum.id, None, ""
        self._votes = {}
        if not self._enabled:
            return effects, None
        self._between_groups = all(m.library for m in quorum.members)
        settled = quorum.settled
        held, self.prepared = self.prepared, None
        mine = quorum.member(self._replica_id)
        whole = held is not None and mine is not None and not mine.torn  # torn: not all ranks hold it any more
        commit = held if whole and (settled.adopted == held or self._replica_id in settled.late) else None
        self._carrier = any(m.replica_id == self._replica_id for m in settled.carriers)
        if commit is not None:
            self.carried = ()
        if self._carrier:
            self.carried = (*self.carried, quorum.id)[-_CARRIED:]
        return effects, commit

    def moved(self) -> None:
        """The group has come to another state by other means than a commit: a heal, or a checkpoint."""
        self.prepared = None
        self.carried = ()

    def vote(self, vote: Vote, *, now: float, lease_until: float) -> list[GroupEffect]:
        """One rank's vote on its result. The ranks hear the decision, or that they shall vote between the groups."""
        effects = self._local.vote(vote, now=now, lease_until=lease_until)
        if not self._between_groups or vote.quorum_id != self._quorum_id:
            return effects
        if vote.step != self._step and self._local.step == vote.step:
            self._step, self._abstains, self._votes = vote.step, "", {}
        if vote.step == self._step:
            self._votes[vote.rank] = vote
        return [self._instead(e, vote) if isinstance(e, AnswerVote) else e for e in effects]

    def _instead(self, answer: AnswerVote, vote: Vote) -> GroupEffect:
        """What the ranks are told for the outcome of the vote inside the group."""
        if answer.commit:
            if not self._carrier:
                return AnswerPrepared(answer.calls, None)
            digest = self._digest()
            self.prepared = Prepared(self._quorum_id, vote.step + 1, digest)  # before the vote leaves (R12)
            said = CrossVote(True, self._quorum_id, vote.step + 1, digest, vote.contributors)
            return AnswerPrepared(answer.calls, said)
        complete = self._local.outcome == (False, answer.reason) and not any(v.broken for v in self._votes.values())
        if not complete or not self._local.complete:
            return answer
        # Its collectives are whole, so the others wait for it in the vote: a carrier says no there, a healer nothing (R13).
        self._abstains = answer.reason
        against = CrossVote(False, self._quorum_id, vote.step + 1, 0, 0)
        return AnswerPrepared(answer.calls, against if self._carrier else None)

    def _digest(self) -> int:
        """One digest for all ranks; a rank meets only its own rank in other groups."""
        digests = [self._votes[rank].digest for rank in sorted(self._votes)]
        if len(digests) == 1:
            return digests[0]
        data = b"".join(d.to_bytes(8, "big") for d in digests)
        return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")

    def crossed(self, event: Crossed, *, now: float, lease_until: float) -> list[GroupEffect]:
        """How the vote between groups ended for one rank. The lease is checked last, at the commit itself (R13)."""
        if event.step != self._step or self._local.outcome is None:
            why = f"group rank {event.rank} has voted between groups on step {event.step}, which the group has not."
            return [AnswerVote((event.call,), False, why)]
        passed = event.ok and not self._abstains
        round_two = Vote(event.call, event.rank, event.step, event.quorum_id, passed)
        effects = self._final.vote(round_two, now=now, lease_until=lease_until)
        if self._abstains:
            return [AnswerVote(e.calls, False, self._abstains) if isinstance(e, AnswerVote) else e for e in effects]
        return effects

    def committed(self) -> None:
        """The group has committed the step in hand."""
        self.prepared = None
        self.carried = (self._quorum_id,) if self._carrier and self._enabled else ()

    def over(self, reason: str) -> list[GroupEffect]:
        """The quorum is over: nobody gets prepared in it any more. A vote that is under way still counts if it passes."""
        return self._local.cancel(reason)

    def cancel(self, reason: str) -> list[GroupEffect]:
        """Nothing of this group's commits any more in this quorum."""
        return [*self._local.cancel(reason), *self._final.cancel(reason)]

    def release(self, asking: frozenset[int]) -> list[GroupEffect]:
        """A rank that asks for the next quorum will not vote any more: those that did would wait for ever."""
        effects: list[GroupEffect] = []
        for ballot in (self._local, self._final):
            gone = sorted(asking - ballot.voted)
            if gone and ballot.waiting:
                ranks = ", ".join(str(rank) for rank in gone)
                effects += ballot.cancel(f"group rank {ranks} asked for a new quorum instead of voting.")
        return effects

    def gone(self, call: int) -> None:
        """Nobody waits for this call any more."""
        self._local.gone(call)
        self._final.gone(call)
