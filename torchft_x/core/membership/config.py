"""Settings of a lighthouse."""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.journal import JournalEntry
from torchft_x.core.membership.failure_detector import SilenceLimits
from torchft_x.errors import ConfigError
from torchft_x.timing import TIMING


@dataclass(frozen=True, kw_only=True, slots=True)
class LighthouseConfig:
    """Settings of a lighthouse. Times in seconds. Raises `ConfigError` naming the field that is out of range."""

    min_replicas: int = 1
    """Fewest members of a quorum."""
    join_timeout: float = 0.1
    """How long a first quorum waits for groups that are alive but have not asked; it bounds such waits later, too."""
    tick: float = 0.1
    """The shell sends a `Tick` at least this often."""
    silence: SilenceLimits = SilenceLimits()
    """How long each kind of silence may last."""
    lease: float = TIMING.lease
    """How long a group may go on in a quorum without hearing from the lighthouse (R16)."""
    lease_margin: float = TIMING.lease_margin
    """Time added where the lighthouse waits for a lease to end, because clocks do not run alike."""
    give_up_after: float = TIMING.give_up_after
    """How long a new lineage waits for a member whose end nothing proves, from the last lease sent to that member.

    A new lineage throws away states that only absent members hold. A member that is stopped, frozen or cut off may come
    back with its state, though it commits nothing after that lease.
    """
    hello_grace: float = TIMING.hello_grace
    """How long a fresh lighthouse waits for reports of groups that run already (R8), unless `new_job`."""
    new_job: bool = True
    """Whether nothing can have come before, so that a fresh lighthouse without a report starts at once (R8)."""
    restarted: bool = False
    """Whether a lighthouse of this job ran before. Then one without a report waits for the old lease to end (R8)."""
    grant_seconds: float = 1.0
    """How many seconds of steps a grant is worth; a newcomer waits about that long (R7)."""
    return_within: float = TIMING.return_within
    """Time in which most lost groups are back. Grants are small meanwhile, so that the group need not wait."""
    return_seconds: float = 0.1
    """How many seconds such a small grant is worth in quorums of up to 200 members; in larger ones in proportion."""
    grant_steps: int = 4096
    """Largest number of steps of one grant."""
    previous: JournalEntry | None = None
    """Journal that the lighthouse of this job before this one has left (R8c); None: there is none."""
    keeps: bool = False
    """Whether the shell writes down what the next lighthouse must know (`Keep`)."""
    boot_id: str = ""
    """Boot id of the lighthouse's host; a refused connect proves death only on that boot (R9)."""

    def __post_init__(self) -> None:
        if self.min_replicas < 1:
            raise ConfigError(f"min_replicas is {self.min_replicas}; a quorum has at least 1 member.")
        if self.grant_steps < 1:
            raise ConfigError(f"grant_steps is {self.grant_steps}; a grant has at least 1 step.")
        for name in ("tick", "lease", "grant_seconds", "return_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be a positive number of seconds.")
        for name in ("join_timeout", "lease_margin", "give_up_after", "hello_grace", "return_within"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it can't be negative.")

    def check_together(self) -> None:
        """Raise `ConfigError` if times contradict each other. Call this before serving; a simulation may skip it."""
        shortest = min(self.silence.shortest, self.silence.stopped)
        if self.tick >= shortest:
            raise ConfigError(
                f"tick is {self.tick:g} s and a silence of {shortest:g} s already means that a member is lost; the clock "
                "must be looked at more often than that (a shorter quorum tick, or a longer heartbeat timeout)."
            )
        if self.lease <= self.silence.member_ping:
            raise ConfigError(
                f"lease is {self.lease:g} s and groups are heard every {self.silence.member_ping:g} s; a lease that ends "
                "between two signs of life stops every group: give a longer one, or a shorter heartbeat timeout."
            )

    @property
    def longest_wait(self) -> float:
        """Longest wait in seconds for a member whose end nothing proves, from the last lease that it was sent."""
        return max(self.lease + self.lease_margin, self.give_up_after)
