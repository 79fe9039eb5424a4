"""What a lighthouse leaves to the next one at its address: all it must remember to go on as if nothing had happened.

Its shell keeps this where it survives the process (rpc/lighthouse/failover/journal.py), and writes it *before* a
quorum or a grant is sent. So whoever finds it knows that no newer quorum and no higher grant exists (R8c).
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.types import Life, Quorum, State


@dataclass(frozen=True, slots=True)
class MemberEntry:
    """What a member has told in its hello, and the quorum does not say: by it reports of deaths find the member."""

    replica_id: str
    life: Life
    boot_id: str = ""
    runs_on: bool = False
    early: bool = False
    """It has left, or was stopped, before the end of the training: its process may end with 0, and finishes nothing (R21)."""


@dataclass(frozen=True, slots=True)
class Absent:
    """A member that nobody waits for and that has no session, so that it is sent no lease any more."""

    replica_id: str
    leased: float | None = None
    """When it was last sent one, on the clock of `JournalEntry.leased`; None: as all others."""
    proof: str = ""
    """Why it is over for good (R9b): its process has ended, or it has left. Empty: that is not known."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A member that has left at the end of the training (`core.admission.finished_job`)."""

    replica_id: str
    life: Life = Life()
    state: State = State()
    lingers: str = ""
    """Accepts connections as long as the process runs; empty: its supervisor knows."""
    ended: bool = False
    """Its process has ended well."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """The newest quorum that was ever issued, and what was known about its members, and those of open quorums."""

    quorum: Quorum
    granted_through: int = 0
    """Highest step ever granted in it."""
    kin: tuple[MemberEntry, ...] = ()
    """Of the members that spoke on sessions, and of earlier ones of the job of which it is not known how they ended (R21)."""
    open: tuple[Quorum, ...] = ()
    """Quorums before it that must be followed, too (`core.quorum.open_quorums`), from old to new."""
    absent: tuple[Absent, ...] = ()
    """Of the members."""
    leased: float | None = None
    """No lease was sent later: seconds on the monotonic clock of the host, which all lighthouses of one boot share. None:
    unknown, so it may have been in the moment in which the lighthouse died."""
    reached: int = 0
    """Newest step that a member told to have committed in it, when one of the others was kept; for people."""
    left: tuple[Departure, ...] = ()
    """Who finishes the job, or has (R21)."""
    job: tuple[str, ...] = ()
    """Groups that have been members since a job was finished last (R21)."""
