"""Elects the one of a job's watchers that asks Slurm, by a note that all of them read. Pure.

A watcher replaces the note each time that it has asked with success. A watcher that sees another's note change stands by.
Two may ask for a moment, when a stopped watcher goes on, so their actions must be safe to repeat.
"""

from __future__ import annotations

from torchft_x.timing import TIMING


class Election:
    """Turn of one watcher, named `me`, which must be unique among the watchers."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._count = 0  # number of notes written by this watcher
        self._seen = ""  # the other watcher's newest note
        self._since: float | None = None  # monotonic seconds since which that note has not changed

    def mine(self, note: str, now: float) -> bool:
        """Return whether this watcher must ask at `now` (monotonic seconds). `note` is the present note, '' if there is none."""
        if not note or note.partition(" ")[0] == self._me:
            self._since = None
            return True
        if self._since is None or note != self._seen:
            self._seen, self._since = note, now
        return now - self._since >= TIMING.watch_stale

    def note(self) -> str:
        """Return the next note of this watcher."""
        self._count += 1
        return f"{self._me} {self._count}"
