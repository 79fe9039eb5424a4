"""Define the phases of a group and the transitions between them, and keep the decisions that led to the present one."""

from __future__ import annotations

from enum import Enum

from torchft_x.core import decision_log
from torchft_x.core.decision_log import Decision
from torchft_x.core.messages import Tick
from torchft_x.core.messages.group import GroupEvent
from torchft_x.core.messages.lighthouse import Join
from torchft_x.core.types import JoinReason, Prepared, Quorum, listed


class GroupPhase(Enum):
    IDLE = "idle"  # the group holds no quorum, and some rank has not asked for one
    JOINING = "joining"  # a join is sent, or to be sent, and unanswered: the group is frozen (R4)
    IN_QUORUM = "in quorum"  # the group holds a quorum: its ranks vote and run on as far as grant and lease go
    REVOKED = "revoked"  # the held quorum is over: only a vote that has passed inside the group goes on (R13)
    ENDED = "ended"  # the group leaves, or must stop: every call is answered with the reason only


TRANSITIONS = {
    (GroupPhase.IDLE, GroupPhase.JOINING): "all ranks ask",
    (GroupPhase.JOINING, GroupPhase.IN_QUORUM): "quorum or grant",
    (GroupPhase.IN_QUORUM, GroupPhase.JOINING): "all ranks ask",
    (GroupPhase.IN_QUORUM, GroupPhase.REVOKED): "revoked",
    (GroupPhase.REVOKED, GroupPhase.JOINING): "all ranks ask",
    # The join has died with its session, or with the grant that answered it, and no rank waits for its answer any more.
    (GroupPhase.JOINING, GroupPhase.IDLE): "withdrawn",
    (GroupPhase.JOINING, GroupPhase.REVOKED): "withdrawn",
    (GroupPhase.IDLE, GroupPhase.ENDED): "ends",
    (GroupPhase.JOINING, GroupPhase.ENDED): "ends",
    (GroupPhase.IN_QUORUM, GroupPhase.ENDED): "ends",
    (GroupPhase.REVOKED, GroupPhase.ENDED): "ends",
}
"""All transitions, each with its cause. A withdrawn join leaves the group in the quorum that it holds."""


class Progression:
    """A group's phase and its newest decisions. `now` and `event` (the one being handled) are recorded with them."""

    def __init__(self, now: float) -> None:
        self.phase = GroupPhase.IDLE
        self.now = now
        self.event: GroupEvent = Tick()
        self._decisions: tuple[Decision, ...] = ()

    def note(self, sentence: str) -> None:
        """Record a decision that leaves the phase as it is."""
        self._decisions = decision_log.after(self._decisions, self.now, self.event, sentence)

    def enter(self, phase: GroupPhase, sentence: str) -> None:
        assert (self.phase, phase) in TRANSITIONS, f"no way from {self.phase.value} to {phase.value}: {sentence}"
        self.phase = phase
        self.note(sentence)

    def reach(self, phase: GroupPhase, sentence: str) -> None:
        """Enter `phase` unless the group is in it already. Record the decision in any case."""
        self.note(sentence) if phase is self.phase else self.enter(phase, sentence)

    def story(self, now: float) -> list[str]:
        return decision_log.story(self._decisions, now)


_BECAUSE = {
    JoinReason.NEW: "as a newcomer",
    JoinReason.BOUNDARY: "as its grant is used up",
    JoinReason.FAILED: "as its last step has failed",
    JoinReason.HEALED: "as it has copied the state",
    JoinReason.REJOINED: "as it can't go on in its quorum",
}


def why_asked(join: Join) -> str:
    suspects = f"; it suspects {listed(join.suspects)}" if join.suspects else ""
    return f"The group asks for the next quorum at {join.member.state}, {_BECAUSE[join.reason]}{suspects}."


def why_held(quorum: Quorum, commit: Prepared | None) -> str:
    groups = f"{len(quorum.members)} members, {len(quorum.carriers)} of them up to date"
    first = f"; it commits {commit.state} first" if commit is not None else ""
    lease = f"through step {quorum.granted_through}, for {quorum.lease:g} s"
    return f"The group holds quorum q{quorum.number} ({groups}) {lease}{first}."
