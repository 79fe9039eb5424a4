"""What goes into the lighthouse and group machines, and what comes out.

The contract between a machine and its shell::

    for effect in machine.handle(event, now):   # decided under the shell's lock, no I/O
        shell.carry_out(effect)                 # done after the lock is released

A shell must deliver the events of one session in order, must deliver `Closed` exactly once and last,
and must call `handle(Tick(), now)` at least every `config.tick` seconds.
A *session* is an integer the shell gives to each stream; a *call* is one it gives to each unary request.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.crossvote import CrossVote
from torchft_x.core.legacy import Legacy
from torchft_x.core.traits import Traits
from torchft_x.core.types import JoinReason, Life, Member, Prepared, Quorum, State

# --- into the lighthouse ---------------------------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class LifeBegun:
    """A supervisor has started this life of its group."""

    group: str  # as the supervisor names it
    attempt: int
    life_token: str = ""


@dataclass(frozen=True, slots=True)
class LastWord:
    """What a life that has ended had received last, as it wrote down before it followed it (`core.coalition`)."""

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

# --- out of the lighthouse -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep this where it survives the process, before any later effect is carried out (R8c). Replaces what was kept.

    Comes only if the configuration says `keeps`. Of the same quorum it may say no more than a higher grant.
    """

    legacy: Legacy


@dataclass(frozen=True, slots=True)
class Issue:
    """Send the quorum to these sessions (encode it once) and answer these unary calls."""

    quorum: Quorum
    sessions: tuple[int, ...]
    calls: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Extend:
    """Tell this session that it may run on in its quorum; the answer to the join or progress of that number."""

    session: int
    quorum_id: int
    granted_through: int
    lease: float
    number: int


@dataclass(frozen=True, slots=True)
class SendOver:
    """Tell these sessions: abort the collectives of that quorum now and join."""

    sessions: tuple[int, ...]
    quorum_id: int
    lost: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class SendWaits:
    """Tell these sessions, which have asked, why there is no quorum yet."""

    sessions: tuple[int, ...]
    reason: str
    lease: bool  # it may take until the end of somebody's lease
    elsewhere: bool = False  # of several lighthouses: those that are waited for may be at another one


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
class HangUp:
    """Close this stream without a word: it was replaced by another one of the same member. Whoever is there reconnects."""

    session: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with a sentence, then close. Exactly one of session and call is set."""

    sentence: str
    session: int | None = None
    call: int | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """Connect to the address and report `Probed`. At once, with a short deadline (1 s)."""

    replica_id: str
    address: str


@dataclass(frozen=True, slots=True)
class Note:
    """For the log and the event file: `event` is one of design 7's names or a log-only name, `text` is a sentence."""

    event: str
    text: str
    replica_id: str = ""
    quorum_id: int = 0


LighthouseEffect = Keep | Issue | Extend | SendOver | SendWaits | SendPatience | Fence | HangUp | Refuse | Probe | Note

# --- into the group machine ------------------------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class FencedArrived:
    by: str


@dataclass(frozen=True, slots=True)
class RefusedArrived:
    sentence: str


@dataclass(frozen=True, slots=True)
class WaitsArrived:
    """What the lighthouse waits for. For `core.endurance`; it changes nothing in the group."""

    reason: str
    lease: bool


@dataclass(frozen=True, slots=True)
class Depart:
    """The group shuts down at a step boundary: leave gracefully."""


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
    | WaitsArrived
    | Depart
    | Tick
)

# --- out of the group machine ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendJoin:
    """Send this join on the present session."""

    member: Member
    reason: JoinReason
    suspects: tuple[str, ...]
    traits: Traits | None = None  # None: the lighthouse has them already
    number: int = 0
    step_seconds: float = 0.0


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
class PushOver:
    """Tell every rank: release the collectives of that quorum now."""

    quorum_id: int
    lost: tuple[str, ...]
    reason: str


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
    | PushOver
    | PushEnd
    | Note
)
