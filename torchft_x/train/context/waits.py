"""Waits for the other groups: how long each may take, and that the supervisor can see them."""

from __future__ import annotations

import time
from collections import Counter

from torchft_x.core.training.step_clock import WaitBudget
from torchft_x.errors import CollectiveError
from torchft_x.train.introspection.shared_status import SharedStatus
from torchft_x.train.setup.connect import LighthouseLink
from torchft_x.train.setup.options import Options


class PeerWaits:
    """Of one Manager. Whoever is about to wait calls `begin`, and `end` in any case.

    `link`: whether the lighthouse can be asked. Without it nobody can be left out, so there is no use in giving a wait
    up early. `status`: None: no supervisor reads it.
    """

    def __init__(self, options: Options, status: SharedStatus | None, link: LighthouseLink) -> None:
        self._budget = WaitBudget(time.monotonic(), most=options.timeout, fixed=options.straggler_timeout)
        self._most = options.timeout
        self._status = status
        self._link = link
        self.somebody_heals = False  # another one, in the quorum in hand: it is waited for while its copy moves
        self.given_up: Counter[str] = Counter()  # heals from here that were given up when all was sent, by group

    def begin(self) -> float:
        """A wait for other groups begins. Returns the seconds it may take."""
        limit = self._budget.wait(time.monotonic(), unlimited=self.somebody_heals or not self._link.connected)
        if self._status is not None:
            self._status.waits(True)
        return limit

    def end(self) -> None:
        self._budget.work(time.monotonic())
        if self._status is not None:
            self._status.waits(False)

    def explain(self, error: Exception, seconds: float) -> Exception:
        """`error`, with which a wait ended after so many seconds, in words that say why if its limit was ours."""
        limit = self._budget.limit
        if self._budget.unlimited or limit >= self._most or seconds < limit or not isinstance(error, CollectiveError):
            return error
        return CollectiveError(
            f"another group is late: this one has waited {seconds:.1f} s for it in a reduction or vote; the lighthouse is "
            f"asked to go on with those who are there ({error})",
            error.suspects,
        )

    @property
    def since(self) -> float | None:
        """When the wait for other groups in hand began (monotonic seconds); None: there is none. From any thread."""
        return self._budget.waits_since

    @property
    def lateness(self) -> float:
        """Seconds another group may come later than this one. From any thread."""
        return self._budget.lateness

    def next_step(self) -> None:
        """A step has ended, committed or dropped."""
        self._budget.next_step(time.monotonic())

    @property
    def patience(self) -> float:
        """Seconds that who asks for a quorum now waits for groups that do not."""
        return self._budget.patience(time.monotonic())
