"""Merge the asks of all ranks of a group into its one join to the lighthouse. Describe it and its answer for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchft_x.core.commit.two_phase import TwoPhaseCommit
from torchft_x.core.fingerprint import Fingerprint
from torchft_x.core.messages.group import Ask
from torchft_x.core.messages.lighthouse import Join
from torchft_x.core.types import AttemptId, JoinReason, Member, Prepared, Quorum, State, listed
from torchft_x.errors import ConfigError

# If ranks give different reasons, the one that tells most about the group's state wins: the earliest here.
_REASON_ORDER = (JoinReason.FAILED, JoinReason.REJOINED, JoinReason.NEW, JoinReason.HEALED, JoinReason.BOUNDARY)
_BECAUSE = {
    JoinReason.NEW: "as a newcomer",
    JoinReason.BOUNDARY: "as its grant is used up",
    JoinReason.FAILED: "as its last step has failed",
    JoinReason.HEALED: "as it has copied the state",
    JoinReason.REJOINED: "as it can't go on in its quorum",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupConfig:
    """Settings of a group server that stay the same for the whole attempt."""

    replica_id: str
    """Name of this attempt, ``<group id>:<nonce>``."""
    address: str
    """Address of the group server, ``http://host:port``."""
    store_address: str
    """Address of the group's TCPStore, ``host:port``."""
    world_size: int = 1
    """Number of ranks in the group."""
    library: str = ""
    """Library and version, ``torchft_x/<version>``. It decides which members may heal from each other."""
    attempt_id: AttemptId = AttemptId()
    boot_id: str = ""
    """Boot id of this host. With it a refused connect proves this attempt's death to a lighthouse on the same host."""
    runs_on: bool = False
    """Whether steps inside a grant begin without asking the lighthouse (R7, R16)."""
    commit_vote: bool = False
    """Whether groups vote with each other before a commit (R12-R14). All groups of a job must have the same value."""

    def __post_init__(self) -> None:
        if not self.replica_id:
            raise ConfigError("replica_id is empty; a group needs a name like 'train_0:<nonce>'.")
        if self.world_size < 1:
            raise ConfigError(f"world_size is {self.world_size}; a group has at least one rank.")


def make_join(
    config: GroupConfig,
    asks: Mapping[int, Ask],
    state: State,
    two_phase: TwoPhaseCommit,
    traits: Fingerprint | None,
    *,
    lapsed: bool,
) -> Join:
    """Return one join out of one ask per rank. The weakest rank speaks for the group (I2).

    `lapsed`: whether the quorum that the group holds can't be used any more.
    """
    ordered = [asks[rank] for rank in range(config.world_size)]
    uneven = len({a.state for a in ordered}) > 1  # a rank missed a commit: the group has no complete state and heals
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
        handles=handles if any(handles) else (),
        library=config.library,
        prepared=two_phase.prepared,
        carried=two_phase.carried,
        votes_late=any(a.votes_late for a in ordered),
        held=ordered[0].held if len({(a.keeps, a.held) for a in ordered}) == 1 and ordered[0].keeps else (),
        weight=ordered[0].weight,
    )
    reason = min((a.reason for a in ordered), key=_REASON_ORDER.index)
    if lapsed and reason is JoinReason.BOUNDARY:
        reason = JoinReason.REJOINED  # its collectives were released, or others may have gone on without this group
    suspects = tuple(sorted({s for a in ordered for s in a.suspects}))
    unreached = tuple(sorted({s for a in ordered for s in a.unreached}))
    patience = min(a.patience for a in ordered)
    return Join(0, member, reason, suspects, traits, patience=patience, unreached=unreached)


def why_asked(join: Join) -> str:
    suspects = f"; it suspects {listed(join.suspects)}" if join.suspects else ""
    return f"The group asks for the next quorum at {join.member.state}, {_BECAUSE[join.reason]}{suspects}."


def why_held(quorum: Quorum, commit: Prepared | None) -> str:
    groups = f"{len(quorum.members)} members, {len(quorum.carriers)} of them up to date"
    first = f"; it commits {commit.state} first" if commit is not None else ""
    lease = f"through step {quorum.granted_through}, for {quorum.lease:g} s"
    return f"The group holds quorum q{quorum.number} ({groups}) {lease}{first}."
