"""The vote inside a group: a step is committed only if every rank said yes to the same (quorum, step) (I2)."""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.messages import Vote


@dataclass(frozen=True, slots=True)
class Open:
    """Undecided: these ranks have not voted."""

    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """All have voted. `against` names the ranks that said no."""

    calls: tuple[int, ...]
    passed: bool
    against: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """This vote does not belong to the ballot in hand and was not counted."""

    sentence: str


class Ballot:
    """One ballot at a time, for ranks 0..world_size-1. It opens with the first vote and closes when all have voted."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size  # fixed
        self._votes: dict[int, Vote] = {}  # by rank; empty: no ballot is open

    def __repr__(self) -> str:
        return f"Ballot({len(self._votes)} of {self.world_size} voted)"

    @property
    def calls(self) -> tuple[int, ...]:
        """Calls that wait for the outcome."""
        return tuple(v.call for v in self._votes.values())

    def vote(self, vote: Vote) -> Open | Counted | Rejected:
        """Count one vote. A rank that votes again (its call timed out) replaces its vote."""
        if not 0 <= vote.rank < self.world_size:
            return Rejected(f"group rank {vote.rank} voted in a group of {self.world_size}; check RANK and WORLD_SIZE.")
        other = next((v for r, v in self._votes.items() if r != vote.rank), None)
        if other is not None and not _same_question(vote, other):
            return Rejected(
                f"group rank {vote.rank} votes on step {vote.step} of quorum {vote.quorum_id}, but rank {other.rank} "
                f"votes on step {other.step} of quorum {other.quorum_id}: the ranks of a group must call should_commit "
                "the same number of times."
            )
        self._votes[vote.rank] = vote
        missing = tuple(r for r in range(self.world_size) if r not in self._votes)
        if missing:
            return Open(missing)
        votes, self._votes = self._votes, {}
        against = tuple(sorted(r for r, v in votes.items() if not v.ok))
        return Counted(tuple(v.call for v in votes.values()), not against, against)

    def withdraw(self, call: int) -> None:
        """The rank stopped waiting: its vote no longer counts."""
        self._votes = {r: v for r, v in self._votes.items() if v.call != call}

    def cancel(self) -> tuple[int, ...]:
        """Close the ballot undecided and return the calls that waited."""
        calls = self.calls
        self._votes = {}
        return calls


def _same_question(a: Vote, b: Vote) -> bool:
    return a.step == b.step and (a.quorum_id == b.quorum_id or 0 in (a.quorum_id, b.quorum_id))
