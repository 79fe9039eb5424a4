"""Decides when a silent member counts as lost, from its pings and its supervisor's reports. Pure.

The kind of silence decides how long it may last.

* *host*: the member and the supervisor of its host are silent. The host is lost or cut off.
* *stopped*: the supervisor reports that a process of the member is stopped (SIGSTOP, a debugger).
* *busy*: the supervisor reports, but no stop. The member runs, but none of its threads can send (a compiler holding the
  GIL). It is suspected, and its limit is long.
* *alone*: the member has no supervisor (a script started by hand, a client of torchft), and one limit applies.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.errors import ConfigError
from torchft_x.timing import TIMING

SIGNS_PER_LIMIT = 4
"""Number of signs that a supervisor gives within the host's limit, so that one late sign blames nobody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SilenceLimits:
    """Seconds of each kind of silence until a member is lost. Raises `ConfigError` naming the field."""

    alone: float = TIMING.silence_alone
    """Silence of a member without a supervisor."""
    host: float = TIMING.silence_host
    """Silence of a member and of its supervisor."""
    stopped: float = TIMING.silence_stopped
    """Time for which a process of the member may be stopped."""
    busy: float = TIMING.silence_busy
    """Silence of a member whose supervisor says that it runs."""
    busy_steps: float = 5.0
    """Like `busy`, but as a multiple of the member's own longest step; the longer of the two counts."""

    def __post_init__(self) -> None:
        for name in ("alone", "host", "stopped", "busy"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be a positive number of seconds.")
        if not self.busy_steps >= 0:
            raise ConfigError(f"busy_steps is {self.busy_steps}; it can't be negative.")

    @classmethod
    def all(cls, seconds: float | None) -> SilenceLimits:
        """Return limits that are all one heartbeat timeout, which is meant for every kind of silence; None: the usual."""
        if seconds is None:
            return cls()
        if not seconds > 0:
            raise ConfigError(f"heartbeat_timeout is {seconds}; it must be a positive number of seconds.")
        return cls(alone=seconds, host=seconds, stopped=seconds, busy=seconds, busy_steps=0.0)

    @property
    def shortest(self) -> float:
        """Seconds within which a member that was heard, and isn't stopped, is not lost."""
        return min(self.alone, self.host, self.busy)

    @property
    def member_ping(self) -> float:
        """Seconds between two signs of life of a member that has nothing else to send."""
        return min(self.alone / 5, self.busy / 5, self.host / 2)

    @property
    def supervisor_ping(self) -> float:
        """Seconds between two signs of life of a supervisor.

        A supervisor has nothing else to do, so it bears most of the proof that its host lives.
        """
        return min(self.alone / 5, self.host / SIGNS_PER_LIMIT)

    def for_busy(self, longest_step: float) -> float:
        return max(self.busy, self.busy_steps * longest_step)


@dataclass(frozen=True, slots=True)
class StoppedProcess:
    """A supervisor's report that a process of the member is stopped. `since` is on the lighthouse's clock."""

    since: float
    who: str  # "worker 1"


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known about one member. Times on the lighthouse's clock."""

    heard: float  # its last sign of life
    watched: float | None = None  # last sign of life of its supervisor; None: nobody watches over it
    stopped: StoppedProcess | None = None  # its process that has been stopped for the longest time
    connected: bool = True  # whether its stream stands; a busy process keeps it
    longest_step: float = 0.0  # seconds of the longest step seen; 0: unknown
    pause_until: float = float("-inf")  # it has announced that it may be silent until then


def judge(observation: Observation, limits: SilenceLimits, now: float) -> str:
    """Return why nobody should wait for the member any more, as a clause to follow its name; '': wait."""
    if observation.stopped is not None and now - observation.stopped.since >= limits.stopped:
        stopped = f"its {observation.stopped.who} is stopped" if observation.stopped.who else "it is stopped"
        return f"{stopped} (SIGSTOP or a debugger), for {limits.stopped:g} s, says its supervisor"
    silent = now - observation.heard
    if observation.watched is not None and now - observation.watched > limits.host:
        both = now - max(observation.heard, observation.watched)
        return f"it and its supervisor are silent for {limits.host:g} s" if both > limits.host else ""
    if observation.watched is None or not observation.connected:
        return f"silent for {limits.alone:g} s" if silent > limits.alone else ""
    limit = limits.for_busy(observation.longest_step)
    if (
        now - max(observation.heard, observation.pause_until) > limit
    ):  # an announced silence counts from its announced end
        return f"silent for {limit:g} s, though its supervisor says that it runs"
    return ""


def suspect(observation: Observation, limits: SilenceLimits, now: float) -> str:
    """Return a clause for people about a member that is waited for though it is silent; '': it isn't."""
    silent = now - max(observation.heard, observation.pause_until)
    if observation.watched is None or silent <= min(limits.alone, limits.busy) or judge(observation, limits, now):
        return ""
    limit = limits.for_busy(observation.longest_step)
    return (
        f"has been silent for {silent:.1f} s, but its supervisor says that it runs (compiling, or a long "
        f"computation that holds Python's lock?); it counts as lost after {limit:g} s"
    )
