"""What the lighthouse knows of each member: sessions, signs of life, and the two kinds of gone (lost, over)."""

from __future__ import annotations

from torchft_x.core.messages import Hello
from torchft_x.core.types import Life, Member


class Entry:
    """One replica id. It outlives its sessions until the member is over and out of the newest quorum."""

    def __init__(self, replica_id: str, now: float) -> None:
        self.replica_id = replica_id  # fixed
        self.session: int | None = None  # its newest session; None: none stands
        self.life = Life()  # orders lives of a group (R2)
        self.address = ""  # where a probe connects to
        self.boot_id = ""  # of its host
        self.unary = False  # a peer's client: no session, judged by heartbeats only
        self.last_heard = now  # any sign of life
        self.join: Member | None = None  # it waits for a quorum (R3)
        self.call: int | None = None  # the unary request that waits
        self.joined_at = now  # when it began to wait
        self.lost = ""  # why it isn't waited for any more; empty: it is
        self.over = False  # it provably can't commit any more
        self.ended = False  # it left, or its supervisor saw it exit: this replica id can't come back
        self.fenced_by = ""  # replica id of the newer life
        self.lease_end = 0.0  # when the last grant it may hold is over, margin included
        self.holds = 0  # id of the newest quorum it has, as told in a hello or sent to it
        self.reminded = 0  # the quorum it was last told to give up

    @property
    def waits(self) -> bool:
        return self.join is not None and not self.lost and not self.fenced_by

    @property
    def live(self) -> bool:
        """Healthy in the peer's sense: connected, or heard on the unary service."""
        return not self.lost and not self.over and not self.fenced_by and (self.unary or self.session is not None)

    def __repr__(self) -> str:
        marks = [self.lost and "lost", self.over and "over", self.fenced_by and "fenced", self.join and "waits"]
        return f"Entry({self.replica_id}: {', '.join(m for m in marks if m) or 'live'})"

    def greet(self, hello: Hello, now: float) -> None:
        """A new session: joins of the older one are void (R3)."""
        self.session, self.life, self.address, self.boot_id = hello.session, hello.life, hello.address, hello.boot_id
        self.last_heard = now
        self.join = None
        self.holds = hello.quorum.id if hello.quorum is not None else 0
        self.lease_end = max(self.lease_end, now + hello.lease_left)


class DelayGauge:
    """How late the machine itself runs: a starved lighthouse must not blame its members.

    If two ticks are further apart than twice the interval, the excess is time in which signs of life could not be
    taken in, and every member is given it back.
    """

    def __init__(self, interval: float, now: float) -> None:
        self._interval = interval  # seconds between ticks, as configured
        self._last = now  # of the last tick

    def excess(self, now: float) -> float:
        """Seconds to add to every `last_heard`."""
        gap, self._last = now - self._last, now
        return max(0.0, gap - self._interval) if gap > 2 * self._interval else 0.0
