"""What goes into the lighthouse machine (`core.lighthouse.machine`) and what comes out. The contract is in `core.messages`."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from torchft_x.core.fingerprint import Fingerprint
from torchft_x.core.journal import JournalEntry
from torchft_x.core.messages.common import Note, Tick
from torchft_x.core.messages.job import GroupRests, SupervisorGone, SupervisorHere
from torchft_x.core.types import JoinReason, Life, Member, Quorum, State

# --- in ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of every session."""

    session: int
    replica_id: str
    life: Life = Life()
    address: str = ""
    state: State = State()
    quorum: Quorum | None = None  # newest the group knows
    granted_through: int = 0
    lease_left: float = 0.0
    boot_id: str = ""  # of the member's host; a refused connect proves death only if it equals the lighthouse's
    library: str = ""
    runs_on: bool = False  # its joins may be answered by a grant


@dataclass(frozen=True, slots=True)
class Join:
    """The member stands at a step boundary, frozen until it is answered (R4)."""

    session: int
    member: Member
    reason: JoinReason = JoinReason.BOUNDARY
    suspects: tuple[str, ...] = ()
    traits: Fingerprint | None = None  # what must be alike in all groups; None: as last told on this session
    number: int = 0  # echoed by the grant that answers it; 0: not able to take a grant for an answer
    step_seconds: float = 0.0  # how long a step takes, to size grants; 0: unknown
    patience: float = inf  # seconds that it waits for members that do not ask (R20)
    unreached: tuple[str, ...] = ()  # replica ids of those that it could not connect with in its quorum


@dataclass(frozen=True, slots=True)
class Progress:
    """A member of the quorum runs on and wants its grant and its lease extended ahead of need."""

    session: int
    quorum_id: int
    step: int  # committed so far
    number: int  # echoed by the grant
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Leave:
    """At a boundary only. The member's lease is over from now on."""

    session: int
    state: State = State()
    early: bool = False  # the training isn't done: a preemption
    lingers: str = ""  # see `Departure`


@dataclass(frozen=True, slots=True)
class Paused:
    """The member announces that it may be silent, or late at the next step, for so many seconds. 0: the pause is over."""

    session: int
    seconds: float
    reason: str = ""  # "evaluation"


@dataclass(frozen=True, slots=True)
class Suspected:
    """A rank of the member saw a connection to these members break: look after them at once, before its join comes."""

    session: int
    suspects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Heard:
    """A ping, or any other sign of life without content."""

    session: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The stream is gone."""

    session: int


@dataclass(frozen=True, slots=True)
class Probed:
    """Answer to a `Probe`: was the connect refused? False: it was accepted, or nothing is known."""

    replica_id: str
    refused: bool
    address: str = ""  # that was asked


@dataclass(frozen=True, slots=True)
class LifeBegun:
    """A supervisor has started this life of its group."""

    group: str  # as the supervisor names it
    attempt: int
    life_token: str = ""
    stream: int = 0  # of the supervisor that tells; 0: of a group over several nodes


@dataclass(frozen=True, slots=True)
class LifeEnded:
    """A supervisor's word: the process that carried this life token has exited. Proof of death."""

    life_token: str
    code: int = 0


@dataclass(frozen=True, slots=True)
class SupervisorHeard:
    """A supervisor has spoken."""

    stream: int


@dataclass(frozen=True, slots=True)
class LifeHalted:
    """A supervisor's word: a process of this life has been stopped (SIGSTOP, a debugger) for so many seconds."""

    stream: int
    life_token: str
    who: str  # "worker 1"; empty: none is stopped any more
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class UnaryJoin:
    """A peer's client asks on the unary service. `call` stays open until answered or cancelled."""

    call: int
    member: Member


@dataclass(frozen=True, slots=True)
class CopyHeld:
    """A supervisor says what its group's next life can go on from: the newest state that all workers of its node have left in
    its memory. Said when a life has ended, before its end."""

    stream: int
    state: State


@dataclass(frozen=True, slots=True)
class UnaryGone:
    """The unary request was cancelled or ran into its deadline."""

    call: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A peer's client on the unary service."""

    replica_id: str


LighthouseEvent = (
    Hello
    | Join
    | Progress
    | Leave
    | Paused
    | Suspected
    | Heard
    | Closed
    | Probed
    | LifeBegun
    | LifeEnded
    | SupervisorHere
    | SupervisorHeard
    | SupervisorGone
    | LifeHalted
    | CopyHeld
    | GroupRests
    | UnaryJoin
    | UnaryGone
    | Heartbeat
    | Tick
)


# --- out --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep this where it survives the process, before any later effect is carried out (R8c). Replaces what was kept.

    Comes only if the configuration says `keeps`. Of the same quorum it may say no more than a higher grant.
    """

    legacy: JournalEntry


@dataclass(frozen=True, slots=True)
class Issue:
    """Send the quorum to these sessions (encode it once) and answer these unary calls."""

    quorum: Quorum
    sessions: tuple[int, ...]
    calls: tuple[int, ...] = ()
    waited: float = 0.0  # seconds since the first of its members asked


@dataclass(frozen=True, slots=True)
class Extend:
    """Tell this session that it may run on in its quorum; the answer to the join or progress of that number."""

    session: int
    quorum_id: int
    granted_through: int
    lease: float
    number: int


@dataclass(frozen=True, slots=True)
class RevokeQuorum:
    """Tell these sessions: abort the collectives of that quorum now and join."""

    sessions: tuple[int, ...]
    quorum_id: int
    lost: tuple[str, ...]
    reason: str
    left: bool = False  # the lost have left in good order


@dataclass(frozen=True, slots=True)
class SendWaits:
    """Tell these sessions, which have asked, why there is no quorum yet."""

    sessions: tuple[int, ...]
    reason: str
    lease: bool  # it may take until the end of somebody's lease


@dataclass(frozen=True, slots=True)
class SendPatience:
    """Tell these sessions that a quorum may take so much longer: a member has announced a pause. 0: it is over."""

    sessions: tuple[int, ...]
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Fence:
    """Tell the session that a newer life of its group is here, then close it."""

    session: int
    by: str


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Close this stream without a word: it was replaced by another one of the same member. Whoever is there reconnects."""

    session: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with a sentence, then close. Exactly one of session and call is set."""

    sentence: str
    session: int | None = None
    call: int | None = None


@dataclass(frozen=True, slots=True)
class StopGroup:
    """Tell the supervisors of this group, by the name they gave, to stop it with code 0: the job is finished."""

    group: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Connect to the address and report `Probed`. At once, with a short deadline (1 s)."""

    replica_id: str
    address: str


LighthouseEffect = (
    Keep
    | Issue
    | Extend
    | RevokeQuorum
    | SendWaits
    | SendPatience
    | Fence
    | CloseSession
    | Refuse
    | StopGroup
    | Probe
    | Note
)
