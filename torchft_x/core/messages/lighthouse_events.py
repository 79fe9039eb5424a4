"""What goes into the lighthouse machine. The contract is in `core.messages`."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from torchft_x.core.fingerprint import Traits
from torchft_x.core.types import JoinReason, Life, Member, Quorum, State


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
    chain: str = ""  # of several lighthouses, see LastWord; empty: nobody has written down what earlier lives received
    before: Quorum | None = None  # the newest that an earlier life of the chain has received


@dataclass(frozen=True, slots=True)
class Join:
    """The member stands at a step boundary, frozen until it is answered (R4)."""

    session: int
    member: Member
    reason: JoinReason = JoinReason.BOUNDARY
    suspects: tuple[str, ...] = ()
    traits: Traits | None = None  # what must be alike in all groups; None: as last told on this session
    number: int = 0  # echoed by the grant that answers it; 0: not able to take a grant for an answer
    step_seconds: float = 0.0  # how long a step takes, to size grants; 0: unknown
    patience: float = inf  # seconds that it waits for members that do not ask (R20)


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
class Healed:
    session: int
    step: int


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


@dataclass(frozen=True, slots=True)
class LastWord:
    """What a life that has ended had received last, as it wrote down before it followed it (`core.quorum.acceptors`)."""

    replica_id: str
    quorum: Quorum | None  # None: it never received one
    chain: str = ""  # lives of the group that one supervisor started, one after the other; empty: unknown


@dataclass(frozen=True, slots=True)
class LifeEnded:
    """A supervisor's word: the process that carried this life token has exited. Proof of death."""

    life_token: str
    code: int = 0
    word: LastWord | None = None  # of several lighthouses; None: nobody knows


@dataclass(frozen=True, slots=True)
class GroupAnnounced:
    """A supervisor of this group has come (or gone). The first quorum waits for announced groups up to join_timeout."""

    group: str
    present: bool


@dataclass(frozen=True, slots=True)
class GuardianHere:
    """A supervisor's stream stands: it watches over the lives of this group, on this node of it."""

    stream: int  # named by the shell; not used twice
    group: str
    node: int = 0


@dataclass(frozen=True, slots=True)
class GuardianHeard:
    """A supervisor has spoken."""

    stream: int


@dataclass(frozen=True, slots=True)
class GuardianGone:
    """That stream has ended."""

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
class UnaryGone:
    """The unary request was cancelled or ran into its deadline."""

    call: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A peer's client on the unary service."""

    replica_id: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


LighthouseEvent = (
    Hello
    | Join
    | Progress
    | Leave
    | Healed
    | Paused
    | Suspected
    | Heard
    | Closed
    | Probed
    | LifeBegun
    | LifeEnded
    | GroupAnnounced
    | GuardianHere
    | GuardianHeard
    | GuardianGone
    | LifeHalted
    | UnaryJoin
    | UnaryGone
    | Heartbeat
    | Tick
)
