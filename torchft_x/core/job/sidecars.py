"""Track the programs beside the groups (an evaluator, a data service). They end with the job and never count in it.

A job's lighthouse has a roster, which knows when the job is over and ends the sidecars then. A stand-alone lighthouse
knows no job, so that its sidecars run until somebody stops them.

The contract with the shell is that of `core.job.outcome`. Each `SupervisorHere` of a sidecar is followed by
exactly one `SupervisorGone`.
"""

from __future__ import annotations

from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages.job import RosterEffect, SidecarEvent, SupervisorGone, SupervisorHere, TellStop
from torchft_x.core.presence import Presence
from torchft_x.timing import TIMING

REMEMBERED = 256
"""Number of names kept for the status after their sidecars have gone; a stand-alone lighthouse sees many."""


class _Sidecar(Presence):
    """One sidecar name. Its reports are forgotten when a new supervisor takes the name."""

    __slots__ = ("name", "told_lost")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.told_lost = False  # whether the sidecar's silent end was logged

    @property
    def state(self) -> str:
        if self.finished is not None:
            return "failed" if self.finished[0] else "finished"
        return "running" if self.here else "away"


class Sidecars:
    """State machine of the sidecars. The owner, which knows when the job is over, calls `end`."""

    def __init__(self, gone_grace: float = TIMING.gone_grace) -> None:
        self._grace = gone_grace  # seconds for which a stream may be away before that is logged
        self._known: dict[str, _Sidecar] = {}  # by name: sidecars that have connected once
        self._ended: str | None = None  # why the job is over, once it is

    def status(self) -> dict[str, dict[str, object]]:
        """Return a JSON-able status of each sidecar."""
        return {
            s.name: {"state": s.state, "host": s.host, "trouble": s.finished[1] if s.finished else ""}
            for s in self._known.values()
        }

    @property
    def present(self) -> frozenset[str]:
        """Names of the sidecars that are connected."""
        return frozenset(s.name for s in self._known.values() if s.here)

    def handle(self, event: SidecarEvent | Tick, now: float) -> list[RosterEffect]:
        """Handle one event at `now` (monotonic seconds) and return the effects."""
        if isinstance(event, Tick):
            return [note for s in self._known.values() if (note := self._miss(s, now))]
        s = self._known.setdefault(event.group, _Sidecar(event.group))
        if isinstance(event, SupervisorHere):
            s.arrive(event.stream, event.host, now)
            s.finished, s.told_lost = None, False
            self._forget_the_oldest()
            return [] if self._ended is None else [TellStop(s.name, 0, self._ended, sidecar=True)]
        if isinstance(event, SupervisorGone):
            s.leave(event.stream, now)
            return []
        s.finished = event.code, event.sentence
        if event.code == 0:
            return [] if event.sentence else [Note("sidecar", f"The sidecar {s.name} has finished.")]
        why = event.sentence.rstrip(".")
        return [Note("error", f"The sidecar {s.name} gave up on {s.host}: {why}. The job goes on.")]

    def end(self, sentence: str) -> list[RosterEffect]:
        """Stop all sidecars, present and future, because the job is over."""
        self._ended = sentence
        return [TellStop(name, 0, sentence, sidecar=True) for name in sorted(self.present)]

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
