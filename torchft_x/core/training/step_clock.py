"""Measure a rank's own steps, and derive how long a step takes and how long the rank waits for other groups.

**Step time.** The lighthouse sizes grants by it, so that a newcomer waits about a second.

**Wait budget.** The time for which a rank waits for other groups, in a reduction or a vote, before it asks for the next
quorum (R20). A collective's timeout must cover the slowest network and the longest first step. As the only limit it
would turn a hung training thread into a minute of standstill. The time that the others needed for the same stretch
tells a late group from a long step, because all groups committed the step before together. A rank that did its own part
in 0.1 s need not wait a minute for another group's part, and a rank that evaluated for 20 s should.

The end of a wait ends no process. It ends the step's collectives, and the lighthouse leaves out members that don't ask.
"""

from __future__ import annotations

from collections.abc import Callable

from torchft_x.errors import CollectiveError
from torchft_x.timing import TIMING

_ENOUGH = 3  # steps before an estimate is given: from one short step too many would be granted (a hundred)
_WEIGHT = 0.2  # least weight of the newest step; the first few steps have equal shares
_OUTLIER = 4.0  # a step counts as at most this many usual ones: a checkpoint's pause does not recur in the next
LATENESS_FACTOR = 5.0
"""Lateness allowed to other groups, in multiples of one's own part of the step. A group that takes three times as long
as the others is thus waited for."""


class StepTimeEstimate:
    """Smoothed time from the beginning of one step to the beginning of the next."""

    def __init__(self) -> None:
        self.seconds = 0.0  # duration of a usual step; 0: not known yet
        self._smooth = 0.0  # smoothed seconds per step
        self._seen = 0  # number of measured steps
        self._began: float | None = None  # when the present step began

    def begin(self, now: float) -> None:
        """Record that a step begins at `now` (monotonic seconds), and measure the one before it."""
        if self._began is not None:
            took = now - self._began
            if self._seen:
                took = min(took, self._smooth * _OUTLIER)
            self._seen += 1
            self._smooth += max(1 / self._seen, _WEIGHT) * (took - self._smooth)
            self.seconds = self._smooth if self._seen >= _ENOUGH else 0.0
        self._began = now


class WaitBudget:
    """Time for which one rank may wait for other groups, over all of its steps. Times are in monotonic seconds.

    A caller that is about to wait calls `start_wait`, and calls `end_wait` afterwards, however the wait ended.

    Args:
        most: upper limit of every wait, seconds (the Manager's timeout).
        fixed: lateness that the user allows, seconds; None: it is derived from the rank's own steps.
        tell: called with True when a wait begins and with False when it has ended, so that observers see it.
    """

    def __init__(
        self,
        now: float,
        *,
        most: float,
        fixed: float | None = None,
        tell: Callable[[bool], object] = lambda _: None,
    ) -> None:
        self._most = most
        self._fixed = fixed
        self._tell = tell
        self.somebody_heals = False  # another member of the held quorum heals: we wait while its copy moves
        self._own = 0.0  # seconds of own work since the last step ended
        self._works_since: float | None = now  # when own work began; None: this rank waits for others
        self._waited = 0.0  # seconds of the longest wait for others in the present step
        self._waits_since: float | None = None  # when the present wait began
        self._unlimited = False  # whether only `most` limits the present or last wait

    @property
    def limit(self) -> float:
        """Seconds that a wait for other groups may take at present."""
        return self._most if self._unlimited else min(self._most, self.lateness)

    @property
    def lateness(self) -> float:
        """Seconds by which another group may be later than this rank in the present step. Readable from any thread."""
        return self._lateness(self._own)

    def _lateness(self, own: float) -> float:
        return max(TIMING.lateness, LATENESS_FACTOR * own) if self._fixed is None else self._fixed

    def _own_until(self, now: float) -> float:
        return self._own + (now - self._works_since if self._works_since is not None else 0.0)

    @property
    def waits_since(self) -> float | None:
        """Start of the present wait; None: the rank does its own part. Safe to read from any thread."""
        return self._waits_since if self._works_since is None else None

    def patience(self, now: float) -> float:
        """Return the seconds that this rank, which asks for a quorum at `now`, waits for members that do not ask."""
        return max(TIMING.ask_moment, self._lateness(self._own_until(now)) - self._waited)

    def next_step(self, now: float) -> float:
        """Record that a step has ended, committed or dropped. Return the seconds of this rank's own part of it."""
        own = self._own_until(now)
        self._own, self._works_since, self._waited, self._waits_since = 0.0, now, 0.0, None
        return own

    def start_wait(self, now: float, *, connected: bool = True) -> float:
        """Start a wait for other groups or for a quorum. Return the seconds that it may take.

        Only `most` counts while `somebody_heals`, and without a session to the lighthouse (not `connected`): no member
        can be left out then, so there is no use in giving a wait up early.
        """
        self._own, self._works_since = self._own_until(now), None
        self._waits_since, self._unlimited = now, self.somebody_heals or not connected
        self._tell(True)
        return self.limit

    def end_wait(self, now: float) -> None:
        """Record that the wait has ended and own work goes on."""
        if self._waits_since is not None:
            self._waited, self._waits_since = max(self._waited, now - self._waits_since), None
        self._works_since = now
        self._tell(False)

    def explain(self, error: Exception, seconds: float) -> Exception:
        """Return the error with which a wait of `seconds` ended: one that gives the reason if the limit was ours."""
        limit = self.limit
        if self._unlimited or limit >= self._most or seconds < limit or not isinstance(error, CollectiveError):
            return error
        return CollectiveError(
            f"another group is late: this one has waited {seconds:.1f} s for it in a reduction or vote; the lighthouse is "
            f"asked to go on with those who are there ({error})",
            error.suspects,
        )
