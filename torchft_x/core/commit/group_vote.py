"""The vote inside a group: a step commits if every rank says so and the group may still commit at that instant.

One ballot at a time. It is named by (quorum id, step); a vote for anything else is refused, because a vote that
does not say what it is for can commit the wrong step. A vote that arrives after the decision (its rank was slow, or
the answer got lost and it asks again) gets the decision that was made, so that all ranks decide alike (I2).
"""

from __future__ import annotations

from torchft_x.core.messages.group import AnswerVote, FailCalls, GroupEffect, Vote


class GroupVote:
    """Collects one vote per rank, answers them all at once."""

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
