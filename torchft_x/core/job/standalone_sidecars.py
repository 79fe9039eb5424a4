"""Decide when sidecars end at a stand-alone lighthouse, which knows no job and serves several, one after the other.

A sidecar belongs to the groups that were connected at the same time. Once they have all gone, its job is over. If all
groups reported that they are done, the sidecar is stopped `grace` seconds after the last one went. If a group went
silently, that takes `missing` seconds, because the scheduler may restart the group.
"""

from __future__ import annotations

from torchft_x.core.job.sidecars import Sidecars
from torchft_x.core.messages.common import Tick
from torchft_x.core.messages.job import (
    RosterEvent,
    SidecarEffect,
    SidecarEvent,
    SidecarFinished,
    SidecarGone,
    SidecarHere,
    SupervisorFinished,
    SupervisorGone,
    SupervisorHere,
)
from torchft_x.core.presence import Presence
from torchft_x.timing import TIMING

DONE = "all groups of the job have finished"
MISSING = "the groups of the job are gone"


class StandaloneSidecars:
    """State machine of a stand-alone lighthouse's sidecars. Its shell's contract is that of `core.job.outcome`."""

    def __init__(self, grace: float = TIMING.sidecar_grace, missing: float = TIMING.sidecar_missing) -> None:
        self._grace = grace  # seconds until the stop if all groups are done
        self._missing = missing  # seconds until the stop if a group went silently
        self.sidecars = Sidecars()
        self._groups: dict[str, Presence] = {}  # groups that are connected, or went silently
        self._met: set[str] = set()  # sidecars that were connected together with a group
        self._empty_since: float | None = None  # when the last group went; None: one is connected, or none ever was

    def handle(self, event: RosterEvent, now: float) -> list[SidecarEffect]:
        """Handle one event at `now` (monotonic seconds) and return the effects. Ignore attempts and quorums."""
        effects: list[SidecarEffect] = []
        if isinstance(event, (SidecarHere, SidecarGone, SidecarFinished, Tick)):
            effects += self._hear(event, now)
        elif isinstance(event, SupervisorHere):
            group = self._groups.setdefault(event.group, Presence())
            group.arrive(event.stream, event.host, now)
            group.finished = None
            self._met |= self.sidecars.present
            self._empty_since = None
        elif isinstance(event, SupervisorFinished):
            self._groups[event.group].finished = event.code, event.sentence
        elif isinstance(event, SupervisorGone):
            self._leave(self._groups[event.group], event, now)
        return effects + self._judge(now)

    def _hear(self, event: SidecarEvent | Tick, now: float) -> list[SidecarEffect]:
        effects = self.sidecars.handle(event, now)
        if isinstance(event, SidecarHere) and self._is_somebody_here:
            self._met.add(event.sidecar)
        return effects

    @property
    def _is_somebody_here(self) -> bool:
        return any(group.here for group in self._groups.values())

    def _leave(self, group: Presence, event: SupervisorGone, now: float) -> None:
        group.leave(event.stream, now)
        if not group.here and group.finished is not None:
            del self._groups[event.group]
        if not self._is_somebody_here:
            self._empty_since = now

    def _judge(self, now: float) -> list[SidecarEffect]:
        silent = bool(self._groups)  # used only while no group is connected: those left went silently
        if self._empty_since is None or now - self._empty_since < (self._missing if silent else self._grace):
            return []
        effects = self.sidecars.stop(self._met & self.sidecars.present, MISSING if silent else DONE)
        self._met.clear()
        self._groups.clear()
        self._empty_since = None
        return effects
