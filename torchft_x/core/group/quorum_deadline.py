"""Decide how long a rank waits for a quorum: while the lighthouse says what it waits for (docs/dev/design.md).

While other ranks of the same group have not asked, the lighthouse has nothing to say. A time that the user has set is a
limit instead. It counts from the last moment in which a group that pauses was waited for.
"""

from __future__ import annotations

from math import inf

from torchft_x.timing import TIMING


class QuorumDeadline:
    """Deadlines of a group server's open quorum calls. Times are in monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._calls: dict[int, tuple[float, float]] = {}  # open call -> its begin, and how long nothing may be heard
        self._heard = now  # when the lighthouse was last heard about the wait, or a session came up or went down
        self._up = False  # whether there is a session to the lighthouse
        self._paused = -inf  # when a group that pauses was last waited for
        self.reason = ""  # what the lighthouse waits for, as it last said in this session; '' if it has not

    def __repr__(self) -> str:
        return f"<QuorumDeadline {len(self._calls)} calls, {'up' if self._up else 'away'} {self.reason}>"

    def begin(self, call: int, silence: float, now: float) -> None:
        """Start the deadline of `call`, which may wait until nothing was heard for `silence` seconds."""
        self._calls[call] = now, silence

    def end(self, call: int) -> None:
        """Forget `call`: it was answered, or has given up."""
        self._calls.pop(call, None)

    def session(self, up: bool, now: float) -> None:
        """Record that the session to the lighthouse has come up, or that there is none."""
        if up or self._up:
            self._heard = now
        self._up, self.reason = up, ""

    def waits(self, reason: str, pauses: bool, now: float) -> None:
        """Record what the lighthouse waits for, and whether that is a group that pauses."""
        self._heard, self.reason = now, reason
        self._paused = now if pauses else self._paused

    def expired(self, incomplete: bool, now: float) -> list[int]:
        """Return the calls that are given up. `incomplete`: whether calls wait for other ranks of their own group."""
        if self._up and incomplete:
            self._heard = now
        return [
            call
            for call, (begin, silence) in self._calls.items()
            if now - max(begin, self._heard) >= (silence if self._up else TIMING.lighthouse_away)
        ]

    def prolonged(self, timeout: float, now: float) -> float:
        """Return the seconds that a call with this limit may still wait because of a pause. Callable from any thread."""
        return max(0.0, self._paused + timeout - now)
