"""What comes out of the lighthouse machine. The contract is in `core.messages`."""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.journal import Legacy
from torchft_x.core.types import Quorum


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
    left: bool = False  # the lost have left in good order


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
class StopGroup:
    """Tell the supervisors of this group, by the name they gave, to stop it with code 0: the job is finished."""

    group: str
    sentence: str


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
    steps: int | None = None  # that are lost


LighthouseEffect = (
    Keep | Issue | Extend | SendOver | SendWaits | SendPatience | Fence | HangUp | Refuse | StopGroup | Probe | Note
)
