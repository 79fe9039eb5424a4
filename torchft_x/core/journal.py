"""Define the journal that a lighthouse leaves to the next one at its address: all that must survive a restart.

The shell stores it outside the process (rpc/lighthouse/failover/journal.py), and writes it *before* a quorum or grant
is sent. So a lighthouse that finds a journal knows that no newer quorum and no higher grant exists (R8c).
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.types import AttemptId, Quorum, State


@dataclass(frozen=True, slots=True)
class MemberEntry:
    """Facts from a member's hello that are not in the quorum. Reports of deaths are matched to the member by them."""

    replica_id: str
    attempt_id: AttemptId
    boot_id: str = ""
    runs_on: bool = False
    early: bool = False
    """Whether it left, or was stopped, before the end of the training. An exit with 0 then finishes nothing (R21)."""


@dataclass(frozen=True, slots=True)
class Absent:
    """A member without a session that nobody waits for. It is sent no lease any more."""

    replica_id: str
    leased: float | None = None
    """When the last lease was sent to it, on the clock of `JournalEntry.leased`; None: as for all others."""
    proof: str = ""
    """Why the member is over for good (R9b): its process has ended, or it has left. Empty: not known."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A member that has left at the end of the training (`core.admission.finished_job`)."""

    replica_id: str
    attempt_id: AttemptId = AttemptId()
    state: State = State()
    lingers: str = ""
    """Address that accepts connections as long as the process runs; empty: the supervisor reports the end."""
    ended: bool = False
    """Whether the process has ended well."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """The newest quorum ever issued, with the facts known about its members and those of open quorums."""

    quorum: Quorum
    granted_through: int = 0
    """Highest step ever granted in the quorum."""
    members: tuple[MemberEntry, ...] = ()
    """Entries of members with sessions, and of earlier members of the job whose end is not known (R21)."""
    open: tuple[Quorum, ...] = ()
    """Earlier quorums that must be followed, too (`core.membership.current_quorum`), from old to new."""
    absent: tuple[Absent, ...] = ()
    """Absent members of `quorum` and `open`, and earlier ones of the job whose end is not known (R21)."""
    leased: float | None = None
    """Time after which no lease was sent: seconds on the host's monotonic clock, common to all lighthouses of a boot.
    None: unknown, so a lease may have been sent at the moment in which the lighthouse died."""
    reached: int = 0
    """Newest step reported as committed in the quorum when another field was last stored; for people."""
    left: tuple[Departure, ...] = ()
    """Members that finish the job, or have finished it (R21)."""
    job: tuple[str, ...] = ()
    """Groups that have been members since the last job was finished (R21)."""
    boot_id: str = ""
    """Boot of the host that has written it, as its reader says; empty: the reader's own."""
