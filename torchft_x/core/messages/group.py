"""Events and effects of the group machine (`core.group.machine`). The contract is in `core.messages`."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from torchft_x.core.cross_group_vote import CrossVote
from torchft_x.core.fingerprint import Fingerprint
from torchft_x.core.messages import Note, Tick, lighthouse
from torchft_x.core.types import JoinReason, Prepared, Quorum, Ranges, State

# --- in ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """One rank of the group asks for a quorum."""

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
    traits: Fingerprint | None = None  # traits that the rank declares; None: as last declared
    step_seconds: float = 0.0  # duration of a step; 0: unknown
    keeps: bool = False  # the rank is inside a step whose gradients it can reduce again if the quorum requires it
    votes_late: bool = False  # as in `Member`
    patience: float = inf  # seconds for which the rank waits for other groups that do not ask (R20)
    usual: float = 0.0  # seconds after which it gives up if nothing was heard; 0: the call's own deadline only
    unreached: tuple[str, ...] = ()  # as in `messages.lighthouse.Join`
    held: Ranges = ()  # slots whose gradients the rank keeps; equal on all ranks of the group that `keeps`
    weight: int = 1  # as in `Member`


@dataclass(frozen=True, slots=True)
class Vote:
    """The vote of one rank that runs torchft, which names no quorum."""

    call: int
    rank: int
    step: int  # number of steps committed before this one
    ok: bool


@dataclass(frozen=True, slots=True)
class GroupVote:
    """The votes of all ranks of the group on (quorum, step), which rank 0 has collected."""

    step: int  # number of steps committed before this one
    quorum_id: int
    against: tuple[int, ...] = ()  # ranks that voted no
    digests: tuple[int, ...] = ()  # digest of each rank's result, 64 bits unsigned; for the vote between groups
    contributors: int = 0  # number of groups whose gradients are in the result
    broken: bool = False  # a reduction has failed, so the group can't take part in the vote between groups


@dataclass(frozen=True, slots=True)
class CrossVoteEnded:
    """The vote between groups has ended. Not `ok`: it did not pass, or the outcome is unknown."""

    step: int
    quorum_id: int
    ok: bool
    refuted: bool = False  # the result is wrong: no group has committed it, and none may


@dataclass(frozen=True, slots=True)
class CallGone:
    """A rank's request was cancelled or reached its deadline."""

    call: int


@dataclass(frozen=True, slots=True)
class SessionUp:
    """A new session to the lighthouse is established (the shell has sent the hello)."""


@dataclass(frozen=True, slots=True)
class SessionDown:
    reason: str


@dataclass(frozen=True, slots=True)
class QuorumArrived:
    quorum: Quorum


@dataclass(frozen=True, slots=True)
class PongArrived:
    """The lighthouse has answered a ping: it decided every later message of this session after `sent_at`."""

    sent_at: float  # when the ping was sent, on the group's monotonic clock (seconds)


@dataclass(frozen=True, slots=True)
class Leave:
    """The group shuts down at a step boundary and leaves gracefully."""

    early: bool = False  # the training is not done: a preemption
    lingers: str = ""  # as in `core.journal.Departure`


GroupEvent = (
    Ask
    | Vote
    | GroupVote
    | CrossVoteEnded
    | CallGone
    | SessionUp
    | SessionDown
    | QuorumArrived
    | PongArrived
    | Leave
    | Tick
    | lighthouse.Extend
    | lighthouse.RevokeQuorum
    | lighthouse.Fence
    | lighthouse.Refuse
)


# --- out --------------------------------------------------------------------------------------------------------------

# Beside these a group sends `Join`, `Progress` and `Leave` of `messages.lighthouse` on its session, with session 0. Its
# `RevokeQuorum` tells every rank to release its collectives at once.


@dataclass(frozen=True, slots=True)
class QuorumReply:
    """Answer to the `Ask` of these calls: a quorum, and until when (the asker's monotonic seconds) the group may commit."""

    quorum: Quorum
    lease_until: float
    base: State | None = None  # start of the step if not the quorum's top: a later step of the same quorum
    commit: Prepared | None = None  # a result that this group holds and commits before anything else (R14)
    again: bool = False  # all ranks of the group reported `keeps`: they all reduce again, or none does (I2)
    calls: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class VoteReply:
    """Answer to votes: the outcome; or, if `prepared`, that the groups must vote before it is known."""

    commit: bool
    reason: str = ""  # why the step is not committed
    prepared: bool = False
    row: CrossVote | None = (
        None  # to vote with between the groups; not ok: this group has no result; None: no say (R13)
    )
    calls: tuple[int, ...] = ()  # of ranks that run torchft


@dataclass(frozen=True, slots=True)
class FailCalls:
    """Answer these calls with an error sentence. `retry`: whether a retry makes sense."""

    calls: tuple[int, ...]
    sentence: str
    retry: bool


@dataclass(frozen=True, slots=True)
class PushEnd:
    """Tell every rank that this group must stop (fenced or refused), with a sentence."""

    sentence: str
    fenced: bool


GroupEffect = (
    lighthouse.Join
    | lighthouse.Progress
    | lighthouse.Leave
    | lighthouse.RevokeQuorum
    | QuorumReply
    | VoteReply
    | FailCalls
    | PushEnd
    | Note
)
