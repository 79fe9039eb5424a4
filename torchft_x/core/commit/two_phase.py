"""How a group comes to commit: the vote inside the group, what it promises the other groups, and the vote among them.

Without the vote between groups there is one round: all ranks say yes, the lease is valid, the group commits. With it
there are two (protocol, section 5): when all ranks hold the result the group is *prepared* and says so to the others;
each rank then takes part in the vote between groups, and the group commits when it passed on every rank. In between
the group may not forget the result: another group may have seen the vote pass and have committed (R12-R14).
"""

from __future__ import annotations

import hashlib

from torchft_x.core.cross_group_vote import CrossVote
from torchft_x.core.messages.group import AnswerPrepared, AnswerVote, CrossVoteEnded, FailCalls, GroupEffect, Vote
from torchft_x.core.types import Prepared, Quorum

# A group that stood still at one state through more quorums than this forgets the oldest.
_CARRIED = 256


class GroupVote:
    """The vote inside a group: it passes if every rank says so and the group may still commit at that instant.

    Collects one vote per rank, answers them all at once. One ballot at a time. It is named by (quorum id, step); a vote
    for anything else is refused, because a vote that does not say what it is for can commit the wrong step. A vote that
    arrives after the decision (its rank was slow, or the answer got lost and it asks again) gets the decision that was
    made, so that all ranks decide alike (I2).
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._quorum_id = 0  # quorum in hand; 0: none, then only a peer's votes (which name no quorum) are taken
        self._step: int | None = None  # step of the ballot in hand; None: nobody has voted since it was opened
        self._votes: dict[int, bool] = {}  # rank -> its vote; a "no" stays a no
        self._calls: dict[int, int] = {}  # rank -> call that waits for the answer
        self._outcome: tuple[bool, str] | None = None  # decision and why not; None: undecided

    def __repr__(self) -> str:
        state = "open" if self._outcome is None else ("commit" if self._outcome[0] else f"no: {self._outcome[1]}")
        return f"<GroupVote quorum={self._quorum_id} step={self._step} votes={self._votes} {state}>"

    @property
    def voted(self) -> frozenset[int]:
        """Ranks that have voted in the ballot in hand."""
        return frozenset(self._votes)

    @property
    def waiting(self) -> bool:
        """Whether some rank waits for the outcome."""
        return bool(self._calls)

    @property
    def step(self) -> int | None:
        """Step of the ballot in hand."""
        return self._step

    @property
    def outcome(self) -> tuple[bool, str] | None:
        """The decision and why not; None: undecided."""
        return self._outcome

    @property
    def complete(self) -> bool:
        """Whether every rank has voted."""
        return len(self._votes) == self._world_size

    def open(self, quorum_id: int) -> list[GroupEffect]:
        """A new quorum is in hand. Whoever still waits for the old ballot is told that it is void."""
        effects = self.cancel("the group has moved on to the next quorum.")
        self._quorum_id = quorum_id
        self._clear()
        return effects

    def vote(self, vote: Vote, *, now: float, lease_until: float) -> list[GroupEffect]:
        """Take one rank's vote. `now` and `lease_until` are on the group's monotonic clock.

        The lease is checked last, when everybody has said yes: an earlier check says nothing about the instant of
        the commit (R13).
        """
        refusal = self._refusal(vote)
        if refusal:
            return [AnswerVote((vote.call,), False, refusal)]
        if self._starts_anew(vote):
            self._clear()
        self._step = vote.step
        self._votes[vote.rank] = vote.ok and self._votes.get(vote.rank, True)
        if self._outcome is not None:
            return [AnswerVote((vote.call,), *self._outcome)]
        effects: list[GroupEffect] = []
        if vote.rank in self._calls:
            text = f"group rank {vote.rank} has voted on step {vote.step} again, from another call."
            effects.append(FailCalls((self._calls[vote.rank],), text, retry=False))
        self._calls[vote.rank] = vote.call
        if len(self._votes) == self._world_size:
            effects += self._decide(now, lease_until)
        return effects

    def cancel(self, reason: str) -> list[GroupEffect]:
        """The ballot in hand can't pass any more (the quorum is over, a rank went away): say so at once."""
        if self._outcome is None:
            self._outcome = (False, reason)
        return self._answer()

    def gone(self, call: int) -> None:
        """Nobody waits for this call any more. Its rank can't learn the outcome, so an undecided vote is taken back."""
        for rank, waiting in list(self._calls.items()):
            if waiting == call:
                del self._calls[rank], self._votes[rank]

    def _refusal(self, vote: Vote) -> str:
        """Why the vote is not for the ballot in hand, or ''. A refused vote changes nothing."""
        if not 0 <= vote.rank < self._world_size:
            return f"group rank {vote.rank} is outside this group of {self._world_size} ranks."
        if vote.quorum_id not in (0, self._quorum_id):
            in_hand = f"quorum {self._quorum_id}" if self._quorum_id else "no quorum"
            return f"group rank {vote.rank} votes in quorum {vote.quorum_id}, but the group holds {in_hand}."
        if self._step is not None and vote.step != self._step and not self._starts_anew(vote):
            return f"group rank {vote.rank} votes on step {vote.step}, but the ballot in hand is on step {self._step}."
        return ""

    def _starts_anew(self, vote: Vote) -> bool:
        """Whether this vote is for the ballot after the decided one. A peer's client may vote on one step twice."""
        if self._outcome is None or self._step is None:
            return False
        return vote.step > self._step or (vote.quorum_id == 0 and vote.rank in self._votes)

    def _decide(self, now: float, lease_until: float) -> list[GroupEffect]:
        against = sorted(rank for rank, ok in self._votes.items() if not ok)
        if against:
            ranks = ", ".join(str(rank) for rank in against)
            self._outcome = (False, f"group rank {ranks} voted against step {self._step}.")
        elif now > lease_until:
            late = now - lease_until
            self._outcome = (False, f"the lease of quorum {self._quorum_id} ended {late:.1f} s before the commit.")
        else:
            self._outcome = (True, "")
        return self._answer()

    def _answer(self) -> list[GroupEffect]:
        assert self._outcome is not None
        calls = tuple(self._calls[rank] for rank in sorted(self._calls))
        self._calls.clear()
        return [AnswerVote(calls, *self._outcome)] if calls else []

    def _clear(self) -> None:
        """A decided ballot has been answered, so nobody waits."""
        self._step = None
        self._votes = {}
        self._outcome = None


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
            cross_vote = CrossVote(True, self._quorum_id, vote.step + 1, digest, vote.contributors)
            return AnswerPrepared(answer.calls, cross_vote)
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

    def cross_vote_ended(self, event: CrossVoteEnded, *, now: float, lease_until: float) -> list[GroupEffect]:
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
