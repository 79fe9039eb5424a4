"""Events and effects of the lighthouse machine (`core.lighthouse.machine`). The contract is in `core.messages`."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from torchft_x.core.fingerprint import Fingerprint
from torchft_x.core.journal import JournalEntry
from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages.job import (
    AttemptExited,
    AttemptStarted,
    GroupRests,
    SupervisorGone,
    SupervisorHere,
    TellStop,
)
from torchft_x.core.types import AttemptId, JoinReason, Member, Quorum, State

# --- in ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of every session."""

    session: int
    replica_id: str
    attempt_id: AttemptId = AttemptId()
    address: str = ""
    state: State = State()
    quorum: Quorum | None = None  # newest quorum that the group knows
    granted_through: int = 0
    lease_left: float = 0.0
    boot_id: str = ""  # boot id of the member's host; a refused connect proves death only if it equals the lighthouse's
    library: str = ""
    runs_on: bool = False  # whether the member's joins may be answered by a grant


@dataclass(frozen=True, slots=True)
class Join:
    """The member asks for a quorum at a step boundary, and is frozen until the join is answered (R4)."""

    session: int
    member: Member
    reason: JoinReason = JoinReason.BOUNDARY
    suspects: tuple[str, ...] = ()
    traits: Fingerprint | None = None  # traits that all groups must share; None: as last sent on this session
    number: int = 0  # echoed by the grant that answers the join; 0: the member takes no grant as an answer
    step_seconds: float = 0.0  # duration of a step, to size grants; 0: unknown
    patience: float = inf  # seconds for which the member waits for others that do not ask (R20)
    unreached: tuple[str, ...] = ()  # replica ids of members of its quorum that it could not connect with


@dataclass(frozen=True, slots=True)
class Progress:
    """A member of the quorum runs on and asks to extend its grant and lease before they are needed."""

    session: int
    quorum_id: int
    step: int  # number of committed steps
    number: int  # echoed by the grant
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Leave:
    """The member leaves, at a boundary only. Its lease ends at once."""

    session: int
    state: State = State()
    early: bool = False  # the training is not done: a preemption
    lingers: str = ""  # as in `core.journal.Departure`


@dataclass(frozen=True, slots=True)
class Paused:
    """The member announces that it may be silent, or late at the next step, for `seconds`. 0: the pause is over."""

    session: int
    seconds: float
    reason: str = ""  # for people, such as "evaluation"


@dataclass(frozen=True, slots=True)
class Suspected:
    """A rank of the member saw connections to these members break: probe them at once, before its join comes."""

    session: int
    suspects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """A ping or another sign of life without content has arrived."""

    session: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The stream of this session is gone."""

    session: int


@dataclass(frozen=True, slots=True)
class Probed:
    """A `Probe` was carried out. `refused` False: the connect was accepted, or its result is unknown."""

    replica_id: str
    refused: bool
    address: str = ""  # address that was probed


@dataclass(frozen=True, slots=True)
class SupervisorHeard:
    """A message of a supervisor has arrived on this stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class AttemptHalted:
    """A supervisor reports that a process of this attempt has been stopped (SIGSTOP, a debugger) for `seconds`."""

    stream: int
    attempt_token: str
    who: str  # such as "worker 1"; empty: no process is stopped any more
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class UnaryJoin:
    """A client of torchft asks on the unary service. `call` stays open until it is answered or cancelled."""

    call: int
    member: Member


@dataclass(frozen=True, slots=True)
class CopyHeld:
    """A supervisor reports the state that its group's next attempt can resume from, before `AttemptExited` of the last.

    `state`: the newest that all workers of the supervisor's node have left in its memory."""

    stream: int
    state: State


@dataclass(frozen=True, slots=True)
class UnaryGone:
    """The unary request was cancelled or reached its deadline."""

    call: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A client of torchft has sent a heartbeat on the unary service."""

    replica_id: str


LighthouseEvent = (
    Hello
    | Join
    | Progress
    | Leave
    | Paused
    | Suspected
    | SignOfLife
    | Closed
    | Probed
    | AttemptStarted
    | AttemptExited
    | SupervisorHere
    | SupervisorHeard
    | SupervisorGone
    | AttemptHalted
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
    """Store this entry where it survives the process, in place of the last, before carrying out any later effect (R8c).

    This effect comes only if the configuration says `keeps`. It may come again for one quorum with only a higher grant.
    """

    entry: JournalEntry


@dataclass(frozen=True, slots=True)
class Issue:
    """Send the quorum to these sessions (encode it once) and answer these unary calls."""

    quorum: Quorum
    sessions: tuple[int, ...]
    calls: tuple[int, ...] = ()
    waited: float = 0.0  # seconds since the first of the quorum's members asked


@dataclass(frozen=True, slots=True)
class Extend:
    """Tell this session that it may run on in its quorum. This answers the join or progress with that number."""

    quorum_id: int
    granted_through: int
    lease: float
    number: int
    session: int = 0


@dataclass(frozen=True, slots=True)
class RevokeQuorum:
    """Tell these sessions to abort the collectives of that quorum at once and to join."""

    quorum_id: int
    lost: tuple[str, ...]
    reason: str
    left: bool = False  # whether the lost members have left in good order
    sessions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SendWaits:
    """Tell these sessions, which have asked, why there is no quorum yet. It is repeated in each second."""

    reason: str
    pauses: bool  # whether a member that pauses or finishes the job is waited for, which no limit of a user ends
    sessions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Fence:
    """Tell the session that a newer attempt of its group is here, then close the session."""

    by: str
    session: int = 0


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Close this stream without a message: another one of the same member replaced it. A living client reconnects."""

    session: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with a sentence, then close. Exactly one of `session` and `call` is set."""

    sentence: str
    session: int | None = None
    call: int | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """Connect to the address at once, with a short deadline (1 s), and report `Probed`."""

    replica_id: str
    address: str


LighthouseEffect = (
    Keep | Issue | Extend | RevokeQuorum | SendWaits | Fence | CloseSession | Refuse | TellStop | Probe | Note
)
