"""Programs beside the groups (an evaluator, a data service): known by name, ended with the job, never counted.

A job's lighthouse has a roster, which knows when the job is over and ends the sidecars then. A stand-alone lighthouse
knows no job; there `core.job.standalone_sidecars` decides.

The contract with the shell is that of `core.job.outcome`. Each `SidecarHere` is followed by exactly one `SidecarGone`.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchft_x.core.messages.common import Note, Tick
from torchft_x.core.messages.job import (
    SidecarEffect,
    SidecarEvent,
    SidecarGone,
    SidecarHere,
    StopSidecar,
)
from torchft_x.core.presence import Presence
from torchft_x.timing import TIMING

REMEMBERED = 256
"""Names kept after they went, for the status; a stand-alone lighthouse sees many."""


class _Sidecar(Presence):
    """One name. What it has said goes with its supervisor."""

    __slots__ = ("name", "told_lost")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.told_lost = False  # whether its silent end was noted

    @property
    def state(self) -> str:
        if self.finished is not None:
            return "failed" if self.finished[0] else "finished"
        return "running" if self.here else "away"


class Sidecars:
    """The machine. `end` and `stop` are for whoever knows when the job is over."""

    def __init__(self, gone_grace: float = TIMING.gone_grace) -> None:
        self._grace = gone_grace  # seconds a stream may be away before somebody is told
        self._known: dict[str, _Sidecar] = {}  # by name; those that have come once
        self._ended: str | None = None  # why the job is over, once it is

    def status(self) -> dict[str, dict[str, object]]:
        """Per sidecar, json-able."""
        return {
            s.name: {"state": s.state, "host": s.host, "trouble": s.finished[1] if s.finished else ""}
            for s in self._known.values()
        }

    @property
    def present(self) -> frozenset[str]:
        """Names of those that are here."""
        return frozenset(s.name for s in self._known.values() if s.here)

    def handle(self, event: SidecarEvent | Tick, now: float) -> list[SidecarEffect]:
        """Take one event at `now` (monotonic seconds)."""
        if isinstance(event, Tick):
            return [note for s in self._known.values() if (note := self._miss(s, now))]
        s = self._known.setdefault(event.sidecar, _Sidecar(event.sidecar))
        if isinstance(event, SidecarHere):
            s.arrive(event.stream, event.host, now)
            s.finished, s.told_lost = None, False
            self._forget_the_oldest()
            return [] if self._ended is None else [StopSidecar(s.name, self._ended)]
        if isinstance(event, SidecarGone):
            s.leave(event.stream, now)
            return []
        s.finished = event.code, event.sentence
        if event.code == 0:
            return [] if event.sentence else [Note("sidecar", f"The sidecar {s.name} has finished.")]
        why = event.sentence.rstrip(".")
        return [Note("error", f"The sidecar {s.name} gave up on {s.host}: {why}. The job goes on.")]

    def end(self, sentence: str) -> list[SidecarEffect]:
        """The job is over: those that are here, and whoever comes later, are told."""
        self._ended = sentence
        return self.stop(self.present, sentence)

    def stop(self, names: Iterable[str], sentence: str) -> list[SidecarEffect]:
        """Their job is over, others' may go on."""
        return [StopSidecar(name, sentence) for name in sorted(names)]

    def _forget_the_oldest(self) -> None:
        if len(self._known) > REMEMBERED:
            gone = next((s for s in self._known.values() if not s.here), None)
            if gone is not None:
                del self._known[gone.name]

    def _miss(self, s: _Sidecar, now: float) -> Note | None:
        if s.absent_for(now) < self._grace or s.finished is not None or s.told_lost or self._ended is not None:
            return None
        s.told_lost = True
        return Note("error", f"The sidecar {s.name} on {s.host} is gone without a word. The job goes on.")
