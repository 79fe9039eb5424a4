"""Track the quorum that a group holds: its grant, its lease, and the unanswered requests for more (R7, R11, R16)."""

from __future__ import annotations

from torchft_x.core.messages.lighthouse import Extend
from torchft_x.core.types import Quorum
from torchft_x.timing import TIMING

# Ask for more when this fraction of the last extension is left, so that the answer arrives before it is needed.
_STEPS_LEFT = 0.5
_LEASE_LEFT = 0.75
_MOST_PROMISED = 4096  # steps


class HeldQuorum:
    """The quorum that a `Group` holds, with its grant and lease. Times are seconds on the group's monotonic clock."""

    def __init__(self, now: float) -> None:
        self.quorum: Quorum | None = None  # newest received
        self.granted_through = 0  # highest step we may run in this quorum while we have a session
        self.lease_until = now  # end of the lease: nothing is committed in this quorum after it
        self.over = ""  # why the quorum can't be used any more; '' while it can
        self.everybody_carries = False  # R7: no member heals. Else it is left after one step, so that the healer counts
        self._promises = False  # a hello has named steps that we granted ourselves, and has not been answered
        self._promised_at: float | None = None  # when such a hello was last answered in this quorum; None: never
        self._extended_at = 0  # step at which the last extension begins, to see when half of it is used
        self._sent: dict[int, float] = {}  # number of an unanswered request -> time at which it was sent
        self._number = 0  # number of the newest request
        self._progress: int | None = None  # number of the unanswered progress request on the present session

    def __repr__(self) -> str:
        quorum = f"q{self.quorum.number} through step {self.granted_through}" if self.quorum else "no quorum"
        return f"<HeldQuorum {quorum}{f', {self.over}' if self.over else ''}>"

    @property
    def quorum_id(self) -> int:
        """Id of the quorum; 0 if the group holds none."""
        return self.quorum.id if self.quorum else 0

    def receive(self, quorum: Quorum, since: float) -> None:
        """Take `quorum`, which was decided after `since`: its lease counts from that time."""
        self.quorum = quorum
        self.granted_through = quorum.granted_through
        self.lease_until = since + quorum.lease
        self.over = ""
        self.everybody_carries = len(quorum.carriers) == len(quorum.members)
        self._promises, self._promised_at = False, None
        self._extended_at = quorum.top.step
        self.forget_requests()

    def number(self, now: float) -> int:
        """Return a number for a request that is sent now. The lease of the grant that answers it counts from `now`."""
        self._number += 1
        self._sent[self._number] = now
        return self._number

    def forget_requests(self) -> None:
        """Make later answers to open requests void, because their session is gone or a quorum has arrived."""
        self._sent.clear()
        self._progress = None

    def extend(self, grant: Extend) -> bool:
        """Take a grant. Return False if it is about another quorum, or answers no open request of ours."""
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

    def promise(self, step: int, seconds: float, now: float) -> None:
        """Grant ourselves some seconds of steps beyond `step` and announce them in the hello (R16).

        Otherwise the first group to reconnect would stop at its old grant while the others, still disconnected, run on.
        `seconds`: duration of a step; 0: unknown.

        We do so once in a quorum, and in a long one once a minute, because a newcomer may wait for the end of the grant
        (R7). A session that breaks again and again would postpone that for ever. Unanswered hellos don't count.
        """
        if self._promised_at is not None and now - self._promised_at < TIMING.promise_again:
            return
        steps = int(TIMING.promised / seconds) if seconds > 0 else 1
        through = step + min(max(steps, 1), _MOST_PROMISED)
        if through > self.granted_through:
            self._extended_at, self.granted_through = step, through
            self._promises = True

    def greeted(self, now: float) -> None:
        """Record that a hello was answered, so that the steps it named count."""
        if self._promises:
            self._promises, self._promised_at = False, now

    def ended(self, now: float) -> str:
        """Return a sentence if the lease has ended, so that nothing may be committed in the quorum (R13), or ''."""
        if self.quorum is None or now <= self.lease_until:  # a client of torchft may vote without a quorum
            return ""
        return f"the lease of quorum {self.quorum.id} ended {now - self.lease_until:.1f} s before the commit."

    def usable(self, now: float) -> bool:
        return self.quorum is not None and not self.over and now <= self.lease_until

    def allows(self, step: int, now: float, *, connected: bool) -> bool:
        """Return whether `step` may begin (R11, R16). Without a session the lease is the only limit."""
        return self.usable(now) and (step <= self.granted_through or not connected)

    def wants_more(self, step: int, now: float) -> bool:
        """Return whether it is time to ask for an extension, with `step` steps committed."""
        if self.quorum is None or self.over or self._progress is not None:
            return False
        size = self.granted_through - self._extended_at
        few_steps = size > 1 and self.granted_through - step <= size * _STEPS_LEFT
        return few_steps or self.lease_until - now <= self.quorum.lease * _LEASE_LEFT

    def progress(self, now: float) -> int:
        """Return the number of a progress request that is sent now."""
        self._progress = self.number(now)
        return self._progress
