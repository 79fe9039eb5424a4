"""When sidecars end at a stand-alone lighthouse, which knows no job and is there for several, one after the other.

A sidecar belongs to the groups it was here together with. Once they have all gone, so has its job: `settle` seconds
after the last one if all have said that they are done, and only after `missing` seconds if one went without a word,
because its scheduler may start it again.
"""

from __future__ import annotations

from collections import Counter

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

DONE = "all groups of the job have finished"
MISSING = "the groups of the job are gone"


class StandaloneSidecars:
    """The machine. The contract with the shell is that of `core.job.outcome`."""

    def __init__(self, settle: float = 3.0, missing: float = 300.0) -> None:
        self._settle = settle  # seconds, see the module
        self._missing = missing  # seconds
        self.sidecars = Sidecars()
        self._here: Counter[str] = Counter()  # streams of supervisors by group
        self._silent: set[str] = set()  # groups whose supervisor went without having said that it is done
        self._done: set[str] = set()  # groups that are here and have said it
        self._met: set[str] = set()  # sidecars that were here together with a group
        self._empty_since: float | None = None  # when the last group went; None: some are here, or none ever was

    def handle(self, event: RosterEvent, now: float) -> list[SidecarEffect]:
        """Take one event at `now` (monotonic seconds); lives and quorums don't matter here."""
        effects: list[SidecarEffect] = []
        if isinstance(event, (SidecarHere, SidecarGone, SidecarFinished, Tick)):
            effects += self._hear(event, now)
        elif isinstance(event, SupervisorHere):
            self._here[event.group] += 1
            self._silent.discard(event.group)
            self._done.discard(event.group)
            self._met |= self.sidecars.present
            self._empty_since = None
        elif isinstance(event, SupervisorFinished):
            self._done.add(event.group)
        elif isinstance(event, SupervisorGone):
            self._leave(event.group, now)
        return effects + self._judge(now)

    def _hear(self, event: SidecarEvent | Tick, now: float) -> list[SidecarEffect]:
        effects = self.sidecars.handle(event, now)
        if isinstance(event, SidecarHere) and self._here:
            self._met.add(event.sidecar)
        return effects

    def _leave(self, group: str, now: float) -> None:
        self._here[group] -= 1
        if self._here[group] > 0:
            return
        del self._here[group]
        if group not in self._done:
            self._silent.add(group)
        self._done.discard(group)
        if not self._here:
            self._empty_since = now

    def _judge(self, now: float) -> list[SidecarEffect]:
        if self._empty_since is None or now - self._empty_since < (self._missing if self._silent else self._settle):
            return []
        effects = self.sidecars.stop(self._met & self.sidecars.present, MISSING if self._silent else DONE)
        self._met.clear()
        self._silent.clear()
        self._empty_since = None
        return effects
