"""Which of several watchers of one job asks Slurm: one at a time, by a note that all of them read. Pure.

A note is replaced by whoever has just asked with success. Who sees another one's note change stands by. Two may ask for a
moment, when a watcher goes on that was stopped: what they do may be done twice.
"""

from __future__ import annotations

from torchft_x.timing import TIMING


class Turn:
    """Of one watcher. `me`: a name that no other has."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._count = 0  # of my notes
        self._seen = ""  # the other's note, and
        self._since: float | None = None  # since when it has stood still

    def mine(self, note: str, now: float) -> bool:
        """Whether to ask now. `note`: as it stands; empty: there is none."""
        if not note or note.partition(" ")[0] == self._me:
            self._since = None
            return True
        if self._since is None or note != self._seen:
            self._seen, self._since = note, now
        return now - self._since >= TIMING.watch_stale

    def note(self) -> str:
        """The next of mine."""
        self._count += 1
        return f"{self._me} {self._count}"
