"""The quorum a group holds: how long it may run in it, and what it has asked for meanwhile (R7, R11, R16)."""

from __future__ import annotations

from torchft_x.core.messages.group import GrantArrived
from torchft_x.core.types import Quorum
from torchft_x.timing import TIMING

# Ask for more when this much of the last extension is left, so that the answer is there before it is needed.
_STEPS_LEFT = 0.5
_LEASE_LEFT = 0.75
_MOST_PROMISED = 4096  # steps


class HeldQuorum:
    """Part of a group. Times are on the group's own monotonic clock."""

    def __init__(self, now: float) -> None:
        self.quorum: Quorum | None = None  # newest received
        self.granted_through = 0  # highest step we may run in it while we have a session
        self.lease_until = now  # no commit in it after this
        self.over = ""  # why it can't be used any more; '' while it can
        self.everybody_carries = False  # R7: one in which somebody heals is left after one step, so that he contributes
        self._promises = False  # a hello has named steps that we have promised ourselves, and may not have arrived
        self._promised_at: float | None = None  # when such a hello was answered last in this quorum; None: none was
        self._extended_at = 0  # step from which the last extension counts, to see when half of it is used
        self._sent: dict[int, float] = {}  # number of an unanswered request -> when it was sent
        self._number = 0  # of the newest request
        self._progress: int | None = None  # number of the progress that is under way on the present session

    def __repr__(self) -> str:
        quorum = f"q{self.quorum.number} through step {self.granted_through}" if self.quorum else "no quorum"
        return f"<HeldQuorum {quorum}{f', {self.over}' if self.over else ''}>"

    @property
    def quorum_id(self) -> int:
        """0: none."""
        return self.quorum.id if self.quorum else 0

    def receive(self, quorum: Quorum, since: float) -> None:
        """A quorum has come, decided after `since`: its lease counts from there."""
        self.quorum = quorum
        self.granted_through = quorum.granted_through
        self.lease_until = since + quorum.lease
        self.over = ""
        self.everybody_carries = len(quorum.carriers) == len(quorum.members)
        self._promises, self._promised_at = False, None
        self._extended_at = quorum.top.step
        self.forget_requests()

    def number(self, now: float) -> int:
        """A number for a request that is sent now. The lease a grant brings counts from here."""
        self._number += 1
        self._sent[self._number] = now
        return self._number

    def forget_requests(self) -> None:
        """Their session is gone, or a quorum has come: what answers them still is void."""
        self._sent.clear()
        self._progress = None

    def extend(self, grant: GrantArrived) -> bool:
        """Take a grant. False: it is about another quorum, or nothing we have asked for."""
        sent_at = self._sent.pop(grant.number, None)
        if grant.number == self._progress:
            self._progress = None
        if sent_at is None or self.quorum is None or grant.quorum_id != self.quorum.id or self.over:
            return False
        if grant.granted_through > self.granted_through:
            self._extended_at = self.granted_through
            self.granted_through = grant.granted_through
        self.lease_until = max(self.lease_until, sent_at + grant.lease)
        return True

    def promise(self, step: int, worth: float, seconds: float, now: float) -> None:
        """Allow ourselves `worth` seconds of steps beyond `step`, which the hello will name: what everybody could do a
        moment ago without a session (R16) does not end with one, so that nobody stops to wait for a lighthouse that the
        others are still on their way to. `seconds`: of a step; 0: unknown.

        Once in a quorum, and in a long one once a minute: a newcomer may wait for the end of what is granted (R7), and a
        session that breaks again and again would put that off for ever. Hellos that nobody answers don't count.
        """
        if self._promised_at is not None and now - self._promised_at < TIMING.promise_again:
            return
        steps = int(worth / seconds) if seconds > 0 else 1
        through = step + min(max(steps, 1), _MOST_PROMISED)
        if through > self.granted_through:
            self._extended_at, self.granted_through = step, through
            self._promises = True

    def greeted(self, now: float) -> None:
        """A hello was answered, so what it named counts."""
        if self._promises:
            self._promises, self._promised_at = False, now

    def usable(self, now: float) -> bool:
        return self.quorum is not None and not self.over and now <= self.lease_until

    def allows(self, step: int, now: float, *, connected: bool) -> bool:
        """R11, R16: may `step` begin? Without a session the lease is the only limit."""
        return self.usable(now) and (step <= self.granted_through or not connected)

    def wants_more(self, step: int, now: float) -> bool:
        """Whether it is time to ask for an extension, `step` steps being committed."""
        if self.quorum is None or self.over or self._progress is not None:
            return False
        size = self.granted_through - self._extended_at
        few_steps = size > 1 and self.granted_through - step <= size * _STEPS_LEFT
        return few_steps or self.lease_until - now <= self.quorum.lease * _LEASE_LEFT

    def progress(self, now: float) -> int:
        """The number of a progress that is sent now."""
        self._progress = self.number(now)
        return self._progress
