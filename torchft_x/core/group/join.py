"""What a group says when it asks for a quorum: one join out of all its ranks' asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchft_x.core.commit.two_phase import TwoPhaseCommit
from torchft_x.core.fingerprint import Fingerprint
from torchft_x.core.messages.group import Ask, SendJoin
from torchft_x.core.types import JoinReason, Life, Member, State
from torchft_x.errors import ConfigError
from torchft_x.timing import TIMING

# If ranks give different reasons, the one that says most about the state of the group wins.
_REASON_ORDER = (JoinReason.FAILED, JoinReason.REJOINED, JoinReason.NEW, JoinReason.HEALED, JoinReason.BOUNDARY)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupConfig:
    """What does not change over the life of a group."""

    replica_id: str
    """``<group id>:<nonce>``."""
    address: str
    """Of the group server, ``http://host:port``."""
    store_address: str
    """``host:port`` of the group's TCPStore."""
    world_size: int = 1
    """Ranks in the group."""
    library: str = ""
    """``torchft_x/<version>``; what it says decides who may heal from whom."""
    life: Life = Life()
    data: str = ""
    """JSON object handed to the other members, or empty."""
    boot_id: str = ""
    """Of the own host. With it a refused connect proves this life's death to a lighthouse on the same host."""
    runs_on: bool = False
    """Inside a grant, steps begin without asking the lighthouse (R7, R16)."""
    commit_vote: bool = False
    """Groups vote with each other before a commit (R12-R14); equal in all groups of a job."""
    promised: float = TIMING.promised
    """Seconds of steps that a group which runs past its grant without a session allows itself in its next hello (R16):
    longer than anybody's pause between two connects. Once in a quorum, and once a minute (`HeldQuorum.promise`)."""

    def __post_init__(self) -> None:
        if not self.replica_id:
            raise ConfigError("replica_id is empty; a group needs a name like 'train_0:<nonce>'.")
        if self.world_size < 1:
            raise ConfigError(f"world_size is {self.world_size}; a group has at least one rank.")


def make_join(
    config: GroupConfig,
    asks: Mapping[int, Ask],
    state: State,
    pledge: TwoPhaseCommit,
    traits: Fingerprint | None,
    *,
    lapsed: bool,
) -> SendJoin:
    """One join out of one ask per rank. The weakest rank speaks for the group (I2).

    `lapsed`: the quorum in hand can't be used any more.
    """
    ordered = [asks[rank] for rank in range(config.world_size)]
    uneven = len({a.state for a in ordered}) > 1  # one rank missed a commit: no complete state, the group heals
    handles = tuple(a.handle for a in ordered)
    member = Member(
        replica_id=config.replica_id,
        address=config.address,
        store_address=config.store_address,
        state=state,
        torn=uneven or any(a.torn for a in ordered),
        world_size=config.world_size,
        shrink_only=any(a.shrink_only for a in ordered),
        commit_failures=max(a.commit_failures for a in ordered),
        data=config.data,
        handles=handles if any(handles) else (),
        library=config.library,
        prepared=pledge.prepared,
        carried=pledge.carried,
        votes_late=any(a.votes_late for a in ordered),
    )
    reason = min((a.reason for a in ordered), key=_REASON_ORDER.index)
    if lapsed and reason is JoinReason.BOUNDARY:
        reason = JoinReason.REJOINED  # its collectives were released, or others may have gone on without it
    suspects = tuple(sorted({s for a in ordered for s in a.suspects}))
    unreached = tuple(sorted({s for a in ordered for s in a.unreached}))
    patience = min(a.patience for a in ordered)
    return SendJoin(member, reason, suspects, traits, patience=patience, unreached=unreached)
