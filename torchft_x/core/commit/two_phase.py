"""Two-phase commit of a group: the vote inside the group, its promise to the other groups, and the vote between groups.

Without the vote between groups there is one round: if all ranks vote yes and the lease is valid, the group commits. With
it there are two rounds. When all ranks hold the result, the group is *prepared* and reports that to the others. Rank 0
then votes between groups for its group, and the group commits when that vote has passed. In between the group must keep
the result: another group may have seen the vote pass and have committed (R12-R14).
"""

from __future__ import annotations

import hashlib

from torchft_x.core.cross_group_vote import CrossVote
from torchft_x.core.messages.group import AnswerPrepared, AnswerVote, CrossVoteEnded, FailCalls, GroupEffect, Vote
from torchft_x.core.types import Prepared, Quorum

# Largest number of quorums remembered for one state; the oldest are forgotten.
_CARRIED = 256


class GroupVote:
    """Vote inside a group. It passes if every rank votes yes and the lease is valid at that instant.

    It collects one vote per rank and answers all of them at once, for one ballot at a time. A ballot is named by (quorum id,
    step). A vote for another ballot is refused, because it could commit the wrong step. A late or repeated vote, after the
    decision, is answered with that decision, so that all ranks decide alike (I2).
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._quorum_id = 0  # quorum in hand; 0 for none, when only a peer's votes (which name no quorum) are accepted
        self._step: int | None = None  # step of the ballot in hand; None before its first vote
        self._votes: dict[int, bool] = {}  # rank -> its vote; a "no" stays a no
        self._calls: dict[int, int] = {}  # rank -> call that waits for the answer
        self._outcome: tuple[bool, str] | None = None  # decision, and the reason of a no; None while undecided

    def __repr__(self) -> str:
        state = "open" if self._outcome is None else ("commit" if self._outcome[0] else f"no: {self._outcome[1]}")
        return f"<GroupVote quorum={self._quorum_id} step={self._step} votes={self._votes} {state}>"

    @property
    def voted(self) -> frozenset[int]:
        """Ranks that have voted in the ballot in hand."""
        return frozenset(self._votes)

    @property
    def waiting(self) -> bool:
        """Whether a rank waits for the outcome."""
        return bool(self._calls)

    @property
    def step(self) -> int | None:
        """Step of the ballot in hand."""
        return self._step

    @property
    def outcome(self) -> tuple[bool, str] | None:
        """Decision, and the reason of a no; None while undecided."""
        return self._outcome

    @property
    def complete(self) -> bool:
        """Whether every rank has voted."""
        return len(self._votes) == self._world_size

    def open(self, quorum_id: int) -> list[GroupEffect]:
        """Open a ballot for a new quorum. Answer the ranks that still wait for the old ballot with a no."""
        effects = self.cancel("the group has moved on to the next quorum.")
        self._quorum_id = quorum_id
        self._clear()
        return effects

    def vote(self, vote: Vote, *, now: float, lease_until: float) -> list[GroupEffect]:
        """Take one rank's vote. `now` and `lease_until` are on the group's monotonic clock.

        The lease is checked last, when all ranks have voted yes: an earlier check would not cover the instant of the
        commit (R13).
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
        """Decide the ballot in hand against the commit (the quorum is over, a rank has gone) and answer at once."""
        if self._outcome is None:
            self._outcome = (False, reason)
        return self._answer()

    def gone(self, call: int) -> None:
        """Withdraw the undecided vote of a call that has ended: its rank can't learn the outcome."""
        for rank, waiting in list(self._calls.items()):
            if waiting == call:
                del self._calls[rank], self._votes[rank]

    def _refusal(self, vote: Vote) -> str:
        """Return the reason why the vote is not for the ballot in hand, or ''. A refused vote changes nothing."""
        if not 0 <= vote.rank < self._world_size:
            return f"group rank {vote.rank} is outside this group of {self._world_size} ranks."
        if vote.quorum_id not in (0, self._quorum_id):
            in_hand = f"quorum {self._quorum_id}" if self._quorum_id else "no quorum"
            return f"group rank {vote.rank} votes in quorum {vote.quorum_id}, but the group holds {in_hand}."
        if self._step is not None and vote.step != self._step and not self._starts_anew(vote):
            return f"group rank {vote.rank} votes on step {vote.step}, but the ballot in hand is on step {self._step}."
        return ""

    def _starts_anew(self, vote: Vote) -> bool:
        """Return whether this vote is for the ballot after the decided one. A peer's client may vote on one step twice."""
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
        """Clear the ballot. It is decided and answered, so no rank waits."""
        self._step = None
        self._votes = {}
        self._outcome = None


class TwoPhaseCommit:
    """Two-phase commit of one group. `between_groups` is whether groups vote with each other."""

    def __init__(self, replica_id: str, world_size: int, *, between_groups: bool) -> None:
        self._replica_id = replica_id  # never changes
        self._enabled = between_groups  # never changes
        self._between_groups = between_groups  # in the quorum in hand; False if a member's client lacks this vote
        self._local = GroupVote(world_size)  # first round: all ranks hold the result
        self._final = GroupVote(world_size)  # second round: the vote between groups has passed on all ranks
        self.prepared: Prepared | None = None  # result that another group may have committed
        # Quorums carried since the present state. They prove which results were not committed.
        self.carried: tuple[int, ...] = ()
        self._quorum_id = 0  # quorum in hand
        self._carrier = False  # whether this group holds the quorum's newest state, so that its vote is needed
        self._step: int | None = None  # step of `_votes`
        self._votes: dict[int, Vote] = {}  # rank -> its newest vote on `_step`
        self._abstains = ""  # reason why this group will not commit, though it takes part in the vote

    def __repr__(self) -> str:
        return f"<TwoPhaseCommit local={self._local} final={self._final} {self.prepared}>"

    @property
    def between_groups(self) -> bool:
        return self._between_groups

    def open(self, quorum: Quorum) -> tuple[list[GroupEffect], Prepared | None]:
        """Open both rounds for a new quorum. Return effects, and the result that this group must commit first (R14)."""
        effects = [*self._local.open(quorum.id), *self._final.open(quorum.id)]
        self._quorum_id, self._step, self._abstains = quorum.id, None, ""
        self._votes = {}
        if not self._enabled:
            return effects, None
        self._between_groups = all(m.library for m in quorum.members)
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
        return effects, commit

    def state_replaced(self) -> None:
        """Reset after the group's state has changed by a heal or a checkpoint, not by a commit."""
        self.prepared = None
        self.carried = ()

    def vote(self, vote: Vote, *, now: float, lease_until: float) -> list[GroupEffect]:
        """Take one rank's vote on its result. Answer with the decision, or the start of the vote between groups."""
        effects = self._local.vote(vote, now=now, lease_until=lease_until)
        if not self._between_groups or vote.quorum_id != self._quorum_id:
            return effects
        if vote.step != self._step and self._local.step == vote.step:
            self._step, self._abstains, self._votes = vote.step, "", {}
        if vote.step == self._step:
            self._votes[vote.rank] = vote
        return [self._start_cross_group_round(e, vote) if isinstance(e, AnswerVote) else e for e in effects]

    def _start_cross_group_round(self, answer: AnswerVote, vote: Vote) -> GroupEffect:
        """Return the answer to the ranks for the outcome of the vote inside the group."""
        if answer.commit:
            if not self._carrier:
                return AnswerPrepared(answer.calls, None)
            digest = self._digest()
            self.prepared = Prepared(self._quorum_id, vote.step + 1, digest)  # set before the vote is sent (R12)
            cross_vote = CrossVote(True, self._quorum_id, vote.step + 1, digest, vote.contributors)
            return AnswerPrepared(answer.calls, cross_vote)
        complete = self._local.outcome == (False, answer.reason) and not any(v.broken for v in self._votes.values())
        if not complete or not self._local.complete:
            return answer
        # Its collectives are complete, so the others wait for it in the vote. A carrier votes no, a healer not at all (R13).
        self._abstains = answer.reason
        against = CrossVote(False, self._quorum_id, vote.step + 1, 0, 0)
        return AnswerPrepared(answer.calls, against if self._carrier else None)

    def _digest(self) -> int:
        """Return one digest over all ranks' digests, because rank 0 votes for all of them."""
        digests = [self._votes[rank].digest for rank in sorted(self._votes)]
        if len(digests) == 1:
            return digests[0]
        data = b"".join(d.to_bytes(8, "big") for d in digests)
        return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")

    def cross_vote_ended(self, event: CrossVoteEnded, *, now: float, lease_until: float) -> list[GroupEffect]:
        """Take the result of the vote between groups for one rank. The lease is checked last, at the commit itself (R13)."""
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
        """Record that the group has committed the step in hand."""
        self.prepared = None
        self.carried = (self._quorum_id,) if self._carrier and self._enabled else ()

    def over(self, reason: str) -> list[GroupEffect]:
        """End the first round of a quorum that is over. A vote between groups that is under way still counts if it passes."""
        return self._local.cancel(reason)

    def cancel(self, reason: str) -> list[GroupEffect]:
        """Decide both rounds against the commit: this group commits nothing more in this quorum."""
        return [*self._local.cancel(reason), *self._final.cancel(reason)]

    def release(self, asking: frozenset[int]) -> list[GroupEffect]:
        """Cancel ballots in which ranks wait for the votes of ranks that ask for the next quorum and no longer vote."""
        effects: list[GroupEffect] = []
        for ballot in (self._local, self._final):
            gone = sorted(asking - ballot.voted)
            if gone and ballot.waiting:
                ranks = ", ".join(str(rank) for rank in gone)
                effects += ballot.cancel(f"group rank {ranks} asked for a new quorum instead of voting.")
        return effects

    def gone(self, call: int) -> None:
        """Withdraw the undecided votes of a call that has ended."""
        self._local.gone(call)
        self._final.gone(call)
