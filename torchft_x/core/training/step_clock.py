"""What a rank measures of its own steps, and what it makes of it: how long a step takes, and how long it waits for others.

**How long a step takes.** The lighthouse sizes grants by it, so that a newcomer waits about a second.

**How long it waits** for the other groups, in a reduction or a vote, before it asks who is still there (R20). A
collective's timeout must cover the slowest network and the longest first step; as the only limit it turns a hung
training thread into a minute of standstill. What tells a late group from a long step is what the others needed for the
same stretch: all groups have committed the step before together, so whoever has done its own part in 0.1 s need not
wait a minute for another one's, and whoever has evaluated for 20 s should.

The wait does not end anybody. It ends the step's collectives; the lighthouse then leaves out who does not ask.
"""

from __future__ import annotations

from collections.abc import Callable

from torchft_x.errors import CollectiveError
from torchft_x.timing import TIMING

_ENOUGH = 3  # steps before anything is said: one that was short by chance would be granted a hundred times
_WEIGHT = 0.2  # of the newest step, once as many have been seen that it is less than an equal share
_OUTLIER = 4.0  # a step counts as at most so many usual ones: a checkpoint's pause says nothing about the next
TIMES = 5.0
"""Of one's own part of the step. A group that takes three times as long as the others is waited for."""


class StepTimeEstimate:
    """A smoothed time from the beginning of one step to the beginning of the next."""

    def __init__(self) -> None:
        self.seconds = 0.0  # of a usual step; 0: not known yet
        self._smooth = 0.0  # seconds
        self._seen = 0  # steps
        self._began: float | None = None  # when the step in hand began

    def __repr__(self) -> str:
        return f"<StepTimeEstimate {self._smooth:.3g} s, {self._seen} steps>"

    def begin(self, now: float) -> None:
        """A step begins. `now`: monotonic seconds."""
        if self._began is not None:
            took = now - self._began
            if self._seen:
                took = min(took, self._smooth * _OUTLIER)
            self._seen += 1
            self._smooth += max(1 / self._seen, _WEIGHT) * (took - self._smooth)
            self.seconds = self._smooth if self._seen >= _ENOUGH else 0.0
        self._began = now


class WaitBudget:
    """One rank's, over all of its steps. Whoever is about to wait calls `wait`, and `work` in any case. Times in monotonic
    seconds.

    Args:
        most: limit in any case (the Manager's timeout).
        fixed: the lateness that the user allows, instead of what is derived.
        tell: called with True when a wait begins, and with False when it has ended: whoever looks on may see it.
    """

    def __init__(
        self,
        now: float,
        *,
        most: float,
        fixed: float | None = None,
        tell: Callable[[bool], object] | None = None,
    ) -> None:
        self._most = most
        self._fixed = fixed
        self._tell = tell
        self.somebody_heals = False  # another one, in the quorum in hand: it is waited for while its copy moves
        self._own = 0.0  # seconds of own work since the last step ended
        self._works_since: float | None = now  # None: it waits for others
        self._waited = 0.0  # seconds of the longest wait for others in the step in hand
        self._waits_since: float | None = None  # when the wait in hand began
        self._unlimited = False  # of the wait in hand, or the last one: only `most` counts

    def __repr__(self) -> str:
        return f"<WaitBudget own={self._own:.3g} s limit={self.limit:.3g} s>"

    @property
    def limit(self) -> float:
        """Seconds a wait for other groups may take now."""
        return self._most if self._unlimited else min(self._most, self.lateness)

    @property
    def lateness(self) -> float:
        """Seconds another group may come later than this rank did in the step in hand. From any thread."""
        return max(TIMING.lateness, TIMES * self._own) if self._fixed is None else self._fixed

    @property
    def waits_since(self) -> float | None:
        """When the wait in hand began; None: it does its own part. From any thread."""
        return self._waits_since if self._works_since is None else None

    def patience(self, now: float) -> float:
        """Seconds that this rank, which asks for a quorum now, waits for members that do not."""
        own = self._own + (now - self._works_since if self._works_since is not None else 0.0)
        late = max(TIMING.lateness, TIMES * own) if self._fixed is None else self._fixed
        return max(TIMING.ask_moment, late - self._waited)

    def next_step(self, now: float) -> None:
        """A step has ended, committed or dropped."""
        self._own, self._works_since, self._waited, self._waits_since = 0.0, now, 0.0, None

    def wait(self, now: float, *, connected: bool = True) -> float:
        """A wait begins, for other groups or for a quorum. Returns the seconds it may take.

        Only `most` counts while `somebody_heals`, and without a session to the lighthouse (not `connected`): nobody can be
        left out then, so there is no use in giving a wait up early.
        """
        if self._works_since is not None:
            self._own += now - self._works_since
            self._works_since = None
        self._waits_since, self._unlimited = now, self.somebody_heals or not connected
        if self._tell is not None:
            self._tell(True)
        return self.limit

    def work(self, now: float) -> None:
        """It has ended."""
        if self._waits_since is not None:
            self._waited, self._waits_since = max(self._waited, now - self._waits_since), None
        self._works_since = now
        if self._tell is not None:
            self._tell(False)

    def explain(self, error: Exception, seconds: float) -> Exception:
        """`error`, with which a wait ended after so many seconds, in words that say why if its limit was ours."""
        limit = self.limit
        if self._unlimited or limit >= self._most or seconds < limit or not isinstance(error, CollectiveError):
            return error
        return CollectiveError(
            f"another group is late: this one has waited {seconds:.1f} s for it in a reduction or vote; the lighthouse is "
            f"asked to go on with those who are there ({error})",
            error.suspects,
        )
