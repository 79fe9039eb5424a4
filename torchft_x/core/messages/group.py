"""What goes into the group machine (`core.group.machine`) and what comes out. The contract is in `core.messages`."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from torchft_x.core.cross_group_vote import CrossVote
from torchft_x.core.fingerprint import Fingerprint
from torchft_x.core.messages.common import Note, Tick
from torchft_x.core.types import JoinReason, Member, Prepared, Quorum, State

# --- in ---------------------------------------------------------------------------------------------------------------


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
    traits: Fingerprint | None = None  # what the rank declares; None: as last told
    step_seconds: float = 0.0  # how long a step takes; 0: unknown
    keeps: bool = False  # stands inside a step whose gradients it can reduce again, should the quorum want it
    votes_late: bool = False  # see Member
    patience: float = inf  # seconds it waits for other groups that do not ask (R20)
    usual: float = 0.0  # seconds it waits when the lighthouse has nothing to wait for; 0: it has its own deadline only
    unreached: tuple[str, ...] = ()  # see `messages.lighthouse.Join`


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
class CrossVoteEnded:
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
class QuorumRevoked:
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
class PatienceArrived:
    """A quorum may take so much longer: a member has announced a pause. 0: it is over. For the same, and nothing else."""

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """The group shuts down at a step boundary: leave gracefully."""

    early: bool = False  # the training isn't done: a preemption
    lingers: str = ""  # see `Departure`


GroupEvent = (
    Ask
    | Vote
    | CrossVoteEnded
    | CallGone
    | SessionUp
    | SessionDown
    | QuorumArrived
    | GrantArrived
    | QuorumRevoked
    | FencedArrived
    | RefusedArrived
    | PongArrived
    | Leave
    | Tick
)


# --- out --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendJoin:
    """Send this join on the present session."""

    member: Member
    reason: JoinReason
    suspects: tuple[str, ...]
    traits: Fingerprint | None = None  # None: the lighthouse has them already
    number: int = 0
    step_seconds: float = 0.0
    patience: float = inf
    unreached: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SendProgress:
    """Ask for more, on the present session, without stopping."""

    quorum_id: int
    step: int
    number: int
    step_seconds: float


@dataclass(frozen=True, slots=True)
class SendLeave:
    state: State
    early: bool = False
    lingers: str = ""


@dataclass(frozen=True, slots=True)
class AnswerQuorum:
    """Answer these calls with the quorum. `lease_until` is on the group's monotonic clock."""

    calls: tuple[int, ...]
    quorum: Quorum
    lease_until: float
    base: State | None = None  # where the step begins, if not at the quorum's top: a later step of the same quorum
    commit: Prepared | None = None  # a result this group holds and commits before anything else (R14)
    again: bool = False  # all ranks of the group said that they `keep`: they all reduce again, or none does (I2)


@dataclass(frozen=True, slots=True)
class AnswerPrepared:
    """Tell these calls to vote between the groups, with this row; None: without a say (R13).

    A row that is not ok: the group holds no result, and says so to those who wait for it in the vote.
    """

    calls: tuple[int, ...]
    vote: CrossVote | None


@dataclass(frozen=True, slots=True)
class AnswerVote:
    """Answer these calls with the outcome; `reason` says why not."""

    calls: tuple[int, ...]
    commit: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FailCalls:
    """Answer these calls with an error sentence. `retry`: whether trying again makes sense."""

    calls: tuple[int, ...]
    sentence: str
    retry: bool


@dataclass(frozen=True, slots=True)
class PushRevoked:
    """Tell every rank: release the collectives of that quorum now."""

    quorum_id: int
    lost: tuple[str, ...]
    reason: str
    left: bool = False  # the lost have left in good order


@dataclass(frozen=True, slots=True)
class PushEnd:
    """Tell every rank that this group must stop (fenced or refused), with a sentence."""

    sentence: str
    fenced: bool


GroupEffect = (
    SendJoin
    | SendProgress
    | SendLeave
    | AnswerQuorum
    | AnswerPrepared
    | AnswerVote
    | FailCalls
    | PushRevoked
    | PushEnd
    | Note
)
