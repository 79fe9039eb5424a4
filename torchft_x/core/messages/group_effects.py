"""What comes out of the group machine. The contract is in `core.messages`."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from torchft_x.core.cross_group_vote import CrossVote
from torchft_x.core.fingerprint import Traits
from torchft_x.core.messages.lighthouse_effects import Note
from torchft_x.core.types import JoinReason, Member, Prepared, Quorum, State


@dataclass(frozen=True, slots=True)
class SendJoin:
    """Send this join on the present session."""

    member: Member
    reason: JoinReason
    suspects: tuple[str, ...]
    traits: Traits | None = None  # None: the lighthouse has them already
    number: int = 0
    step_seconds: float = 0.0
    patience: float = inf


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
class PushOver:
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
    | PushOver
    | PushEnd
    | Note
)
