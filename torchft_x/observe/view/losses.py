"""Follow a loss phase by phase, from observations of the lighthouse and reports of members.

The phases are those of a report (`torchft_x.observe.run.values`), which takes them from the events of all processes.

The time of a moment is its arrival less its age, so it may seem later than it was, by the duration of a message. A
quorum is recorded a moment after it is sent. Times are therefore clamped to the order in which the phases must follow.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.observe.view.facts import COMMITTED, HEALED, RELEASED, RESTARTED, Moment


@dataclass(eq=False, kw_only=True, slots=True)
class LossEntry:
    """The loss of a member of the quorum, for which nobody waits any more, and its phases, which come one by one."""

    t: float  # unix seconds
    group: str
    replica_id: str
    cause: str  # one of `core.lighthouse.waiting.CAUSES`
    reason: str  # a sentence
    exit: str = ""  # how the member ended, as its supervisor reports
    step: int
    quorum: int  # number of the member's quorum
    quorum_id: int = 0  # id of that quorum
    contributed: int = 0  # number of groups whose gradients counted in that quorum
    # Phases since the loss, in seconds after `t`; None: not reached, or not reported.
    released: float | None = None  # the last of the others left the collectives in which it waited
    regrouped: float | None = None  # the next quorum was issued
    next_id: int = 0  # id of that quorum
    committed: float | None = None  # the others made their first commit
    restarted: float | None = None  # the group's next attempt was ready to join
    rejoined: float | None = None  # the group was in a quorum again
    healed: float | None = None  # the group had copied the state
    back: float | None = None  # the group made its first commit
    whole: float | None = None  # a step was committed by as many groups as before
    stood: float | None = None  # duration from the last commit before to the first since, at the group that was first

    def record_other(self, moment: Moment, at: float) -> None:
        """Record a moment of another group's member at `at` (unix seconds), if it belongs to this loss."""
        since = max(0.0, at - self.t)
        if moment.what == RELEASED and moment.quorum == self.quorum_id:
            self.released = max(since, self.released or 0.0)
        elif self._is_later_commit(moment):
            since = max(since, self.regrouped or 0.0)
            if self.committed is None or since < self.committed:
                self.committed, self.stood = since, moment.took or None
            self._record_whole(moment, since)

    def record_own(self, replica_id: str, moment: Moment, at: float) -> None:
        """Record a moment of the lost group's member at `at` (unix seconds), if it belongs to this loss."""
        since = max(0.0, at - self.t)
        if moment.what == RESTARTED and replica_id != self.replica_id and self.restarted is None:
            self.restarted = since if self.rejoined is None else min(since, self.rejoined)
        elif self.rejoined is None:
            return
        elif moment.what == HEALED and self.healed is None and at > self.t:  # a heal before the loss does not count
            self.healed = max(since, self.rejoined)
        elif self._is_later_commit(moment):
            since = max(since, self.rejoined, self.healed or 0.0)
            if self.back is None:
                self.back, self.whole = since, None if self.whole is None else max(since, self.whole)
            self._record_whole(moment, since)

    def _is_later_commit(self, moment: Moment) -> bool:
        return moment.what == COMMITTED and self.regrouped is not None and moment.quorum >= self.next_id

    def _record_whole(self, moment: Moment, since: float) -> None:
        if self.whole is None and 0 < self.contributed <= moment.participants:
            self.whole = max(since, self.back or 0.0)
