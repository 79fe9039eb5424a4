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
    SidecarFinished,
    SidecarGone,
    SidecarHere,
    StopSidecar,
)

REMEMBERED = 256
"""Names kept after they went, for the status; a stand-alone lighthouse sees many."""


class _Sidecar:
    """One name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.host = ""  # of the newest supervisor
        self.streams = 0  # a supervisor that reconnects may have two for a moment
        self.away_since: float | None = None  # when the last stream ended; None: here
        self.finished: SidecarFinished | None = None  # of the newest supervisor
        self.told_lost = False  # whether its silent end was noted

    @property
    def state(self) -> str:
        if self.finished is not None:
            return "failed" if self.finished.code else "finished"
        return "running" if self.streams else "away"


class Sidecars:
    """The machine. `end` and `stop` are for whoever knows when the job is over."""

    def __init__(self, gone_grace: float = 3.0) -> None:
        self._grace = gone_grace  # seconds a stream may be away before somebody is told
        self._known: dict[str, _Sidecar] = {}  # by name; those that have come once
        self._ended: str | None = None  # why the job is over, once it is

    def status(self) -> dict[str, dict[str, object]]:
        """Per sidecar, json-able."""
        return {
            c.name: {"state": c.state, "host": c.host, "trouble": c.finished.sentence if c.finished else ""}
            for c in self._known.values()
        }

    @property
    def present(self) -> frozenset[str]:
        """Names of those that are here."""
        return frozenset(c.name for c in self._known.values() if c.streams)

    def handle(self, event: SidecarEvent | Tick, now: float) -> list[SidecarEffect]:
        """Take one event at `now` (monotonic seconds)."""
        if isinstance(event, Tick):
            return [note for c in self._known.values() if (note := self._miss(c, now))]
        c = self._known.setdefault(event.sidecar, _Sidecar(event.sidecar))
        if isinstance(event, SidecarHere):
            c.host, c.away_since, c.finished, c.told_lost = event.host, None, None, False
            c.streams += 1
            self._forget_the_oldest()
            return [] if self._ended is None else [StopSidecar(c.name, self._ended)]
        if isinstance(event, SidecarGone):
            c.streams = max(0, c.streams - 1)
            c.away_since = None if c.streams else now
            return []
        c.finished = event
        if event.code == 0:
            return [] if event.sentence else [Note("sidecar", f"The sidecar {c.name} has finished.")]
        why = event.sentence.rstrip(".")
        return [Note("error", f"The sidecar {c.name} gave up on {c.host}: {why}. The job goes on.")]

    def end(self, sentence: str) -> list[SidecarEffect]:
        """The job is over: those that are here, and whoever comes later, are told."""
        self._ended = sentence
        return self.stop(self.present, sentence)

    def stop(self, names: Iterable[str], sentence: str) -> list[SidecarEffect]:
        """Their job is over, others' may go on."""
        return [StopSidecar(name, sentence) for name in sorted(names)]

    def _forget_the_oldest(self) -> None:
        if len(self._known) > REMEMBERED:
            gone = next((c for c in self._known.values() if not c.streams), None)
            if gone is not None:
                del self._known[gone.name]

    def _miss(self, c: _Sidecar, now: float) -> Note | None:
        gone = c.away_since is not None and now - c.away_since >= self._grace
        if not gone or c.finished is not None or c.told_lost or self._ended is not None:
            return None
        c.told_lost = True
        return Note("error", f"The sidecar {c.name} on {c.host} is gone without a word. The job goes on.")
