"""Settings of a lighthouse."""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.journal import JournalEntry
from torchft_x.core.membership.failure_detector import SilenceLimits
from torchft_x.errors import ConfigError
from torchft_x.timing import TIMING


@dataclass(frozen=True, kw_only=True, slots=True)
class LighthouseConfig:
    """Settings of a lighthouse. Times in seconds."""

    min_replicas: int = 1
    """Fewest members of a quorum."""
    join_timeout: float = 0.1
    """How long a first quorum waits for groups that are alive but have not asked."""
    tick: float = 0.1
    """The shell sends a `Tick` at least this often."""
    heartbeat_timeout: float | None = None
    """Explicit: silence of any kind after which a member is lost, instead of `limits`."""
    limits: SilenceLimits = SilenceLimits()
    """How long which kind of silence may last."""
    lease: float = TIMING.lease
    """How long a group may go on in a quorum without hearing from the lighthouse (R16)."""
    lease_margin: float = TIMING.lease_margin
    """Added where the lighthouse waits for a lease to end: clocks do not run alike."""
    give_up_after: float = TIMING.give_up_after
    """A new lineage throws away what only members hold that are away. One whose end nothing proves (stopped, frozen, cut off)
    may come back with it: it is waited for so long from the last lease it was sent, though it commits nothing after that
    lease."""
    hello_grace: float = TIMING.hello_grace
    """How long a fresh lighthouse waits for groups that are running already (R8), unless `new_job`."""
    new_job: bool = True
    """Nothing can have come before, so a fresh lighthouse without a report starts at once (R8)."""
    restarted: bool = False
    """A lighthouse of this job has run before: without a report a fresh one waits for the old lease to end (R8)."""
    grant_seconds: float = 1.0
    """How much a grant is worth: a newcomer waits about that long (R7)."""
    return_within: float = TIMING.return_within
    """A group that was lost is mostly back so soon; meanwhile grants are small, so that it need not wait."""
    return_seconds: float = 0.1
    """How much such a grant is worth, in quorums of up to 200 members; in larger ones in proportion."""
    grant_steps: int = 4096
    """Most steps of one grant."""
    legacy: JournalEntry | None = None
    """Left by the lighthouse before this one, of this job (R8c)."""
    keeps: bool = False
    """The shell keeps what the next lighthouse must know (`Keep`)."""
    boot_id: str = ""
    """Of the own host: a refused connect proves death only there (R9)."""

    def __post_init__(self) -> None:
        if self.min_replicas < 1:
            raise ConfigError(f"min_replicas is {self.min_replicas}; a quorum has at least 1 member.")
        if self.grant_steps < 1:
            raise ConfigError(f"grant_steps is {self.grant_steps}; a grant has at least 1 step.")
        for name in ("heartbeat_timeout", "tick", "lease", "grant_seconds", "return_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}; it must be a positive number of seconds.")
        for name in ("join_timeout", "lease_margin", "give_up_after", "hello_grace", "return_within"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it can't be negative.")

    def check_together(self) -> None:
        """Raise `ConfigError` if times contradict each other. Whoever serves with them calls it; a model may not mind."""
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
        """For one member whose end nothing proves, from the last lease it was sent."""
        return max(self.lease + self.lease_margin, self.give_up_after)

    @property
    def silence(self) -> SilenceLimits:
        """What holds: an explicit heartbeat timeout wins over everything derived."""
        return self.limits if self.heartbeat_timeout is None else SilenceLimits.all(self.heartbeat_timeout)
