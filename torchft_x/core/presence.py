"""Track a supervisor's presence: open streams and their last signs of life, start of an absence, and end.

A supervisor reports for a node of a group, or for a sidecar. Supervisors reconnect (with two streams for a moment) and
are replaced; node and sidecar stay. Each machine that depends on presence owns a record for each of them. It
decides how long an absence may last, and whether a new supervisor revokes the reports of the one before.
"""

from __future__ import annotations

from math import inf


class Presence:
    """Presence of the supervisor of one node or sidecar. The shell numbers streams and never reuses a number."""

    __slots__ = ("away_since", "finished", "heard", "host")

    def __init__(self) -> None:
        self.host = ""  # host of the newest supervisor; empty: none has come yet
        self.heard: dict[int, float] = {}  # open stream -> time of its last sign of life
        self.away_since: float | None = None  # when the last stream ended; None: connected, or never came
        self.finished: tuple[int, str] | None = None  # code and sentence, once the supervisor is done

    @property
    def here(self) -> bool:
        return bool(self.heard)

    @property
    def last_sign(self) -> float:
        """Time of the last sign of life on any open stream. At least one stream must be open."""
        return max(self.heard.values())

    @property
    def stream(self) -> int | None:
        """Newest open stream; None: the supervisor is away."""
        return next(reversed(self.heard), None)

    def absent_for(self, now: float) -> float:
        """Return the seconds since the last stream ended: 0 while one is open, infinite if none ever was."""
        if self.heard:
            return 0.0
        return inf if self.away_since is None else now - self.away_since

    def arrive(self, stream: int, host: str, now: float) -> None:
        """Record that a stream is established from this host."""
        self.heard[stream] = now
        self.host, self.away_since = host, None

    def receive(self, stream: int, now: float) -> None:
        if stream in self.heard:
            self.heard[stream] = now

    def leave(self, stream: int, now: float) -> None:
        """Record that a stream has ended."""
        if self.heard.pop(stream, None) is not None and not self.heard:
            self.away_since = now

    def forgive(self, seconds: float, now: float) -> None:
        """Move all last signs of life forward by `seconds`, for which the listener itself slept."""
        self.heard = {stream: min(now, heard + seconds) for stream, heard in self.heard.items()}
