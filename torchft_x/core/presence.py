"""Whether a supervisor is here: its open streams, when they were heard, since when it is away, whether it is done.

A *place* is what a supervisor speaks for: a node of a group, or a sidecar. Supervisors reconnect (two streams for a moment)
and are replaced; the place stays. Each machine that has to know owns a record for each place: how long an absence may last,
and whether a newcomer takes back what the one before it has said, are its own rules.
"""

from __future__ import annotations

from math import inf


class Presence:
    """One place. A stream's number is the shell's, and is not used twice."""

    __slots__ = ("away_since", "finished", "heard", "host")

    def __init__(self) -> None:
        self.host = ""  # of the newest supervisor; empty: none has come yet
        self.heard: dict[int, float] = {}  # open stream -> its last sign of life
        self.away_since: float | None = None  # when the last stream ended; None: here, or never came
        self.finished: tuple[int, str] | None = None  # code and sentence, once it has said that it is done

    @property
    def here(self) -> bool:
        return bool(self.heard)

    @property
    def last_sign(self) -> float:
        """When it was heard last, on any of its open streams, of which there must be one."""
        return max(self.heard.values())

    @property
    def stream(self) -> int | None:
        """The newest of its open streams. None: it is away."""
        return next(reversed(self.heard), None)

    def absent_for(self, now: float) -> float:
        """Seconds since its last stream has ended: 0 while it is here, infinite if it never came."""
        if self.heard:
            return 0.0
        return inf if self.away_since is None else now - self.away_since

    def arrive(self, stream: int, host: str, now: float) -> None:
        """A stream stands."""
        self.heard[stream] = now
        self.host, self.away_since = host, None

    def hear(self, stream: int, now: float) -> None:
        if stream in self.heard:
            self.heard[stream] = now

    def leave(self, stream: int, now: float) -> None:
        """That stream has ended."""
        if self.heard.pop(stream, None) is not None and not self.heard:
            self.away_since = now

    def forgive(self, seconds: float, now: float) -> None:
        """For so long it was the listener that slept."""
        self.heard = {stream: min(now, heard + seconds) for stream, heard in self.heard.items()}
