"""What goes into the group machine. The contract is in `core.messages`."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from torchft_x.core.fingerprint import Traits
from torchft_x.core.messages.lighthouse_events import Tick
from torchft_x.core.types import JoinReason, Quorum, State


@dataclass(frozen=True, slots=True)
class Ask:
    """One rank of the group wants a quorum."""

    call: int
    rank: int
    state: State
    torn: bool = False
    shrink_only: bool = False
    commit_failures: int = 0
    checkpoint_metadata: str = ""
    handle: str = ""
    reason: JoinReason = JoinReason.BOUNDARY
    suspects: tuple[str, ...] = ()
    traits: Traits | None = None  # what the rank declares; None: as last told
    step_seconds: float = 0.0  # how long a step takes; 0: unknown
    keeps: bool = False  # stands inside a step whose gradients it can reduce again, should the quorum want it
    votes_late: bool = False  # see Member
    patience: float = inf  # seconds it waits for other groups that do not ask (R20)
    usual: float = 0.0  # seconds it waits when the lighthouse has nothing to wait for; 0: it has its own deadline only


@dataclass(frozen=True, slots=True)
class Vote:
    """One rank's vote on (quorum, step). quorum 0: a peer's client, which doesn't say."""

    call: int
    rank: int
    step: int  # committed before it
    quorum_id: int
    ok: bool
    digest: int = 0  # of this rank's result, 64 bits unsigned; only used with the vote between groups
    contributors: int = 0  # groups whose gradients are in the result; the same on all ranks
    broken: bool = False  # not ok because a reduction failed, so this rank can't take part in the vote between groups


@dataclass(frozen=True, slots=True)
class Crossed:
    """How the vote between groups ended for one rank. not ok: it did not pass, or nothing is known."""

    call: int
    rank: int
    step: int
    quorum_id: int
    ok: bool


@dataclass(frozen=True, slots=True)
class CallGone:
    """A rank's request was cancelled or ran into its deadline."""

    call: int


@dataclass(frozen=True, slots=True)
class SessionUp:
    """A new session to the lighthouse stands (the shell has sent hello)."""


@dataclass(frozen=True, slots=True)
class SessionDown:
    reason: str


@dataclass(frozen=True, slots=True)
class QuorumArrived:
    quorum: Quorum


@dataclass(frozen=True, slots=True)
class GrantArrived:
    quorum_id: int
    granted_through: int
    lease: float
    number: int  # of the join or progress it answers


@dataclass(frozen=True, slots=True)
class OverArrived:
    quorum_id: int
    lost: tuple[str, ...]
    reason: str
    left: bool = False  # the lost have left in good order


@dataclass(frozen=True, slots=True)
class FencedArrived:
    by: str


@dataclass(frozen=True, slots=True)
class RefusedArrived:
    sentence: str


@dataclass(frozen=True, slots=True)
class PongArrived:
    """The lighthouse has answered a ping: what it says from now on in this session it decided after `sent_at`."""

    sent_at: float  # on the group's monotonic clock, when that ping was sent


@dataclass(frozen=True, slots=True)
class WaitsArrived:
    """What the lighthouse waits for. For `core.group.quorum_deadline`; it changes nothing in the group."""

    reason: str
    lease: bool


@dataclass(frozen=True, slots=True)
class Depart:
    """The group shuts down at a step boundary: leave gracefully."""

    early: bool = False  # the training isn't done: a preemption
    lingers: str = ""  # see `Departure`


GroupEvent = (
    Ask
    | Vote
    | Crossed
    | CallGone
    | SessionUp
    | SessionDown
    | QuorumArrived
    | GrantArrived
    | OverArrived
    | FencedArrived
    | RefusedArrived
    | PongArrived
    | WaitsArrived
    | Depart
    | Tick
)
