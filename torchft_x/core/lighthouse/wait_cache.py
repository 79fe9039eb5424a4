"""Whether the next quorum must surely be waited for, in constant time.

`formation.form` looks at every member; with ten thousand of them it may not be asked at every event. Here is what is
known without looking: what is counted, and one *witness* that was found when it was last asked, a member for which
the others wait. While the witness may still commit, and nobody has asked since of those who could end the wait (members
of the present quorum, and of older ones that are open), they go on waiting for it. When in doubt the answer is no, and `form` decides.
"""

from __future__ import annotations

from math import inf

from torchft_x.core.lighthouse.loss import LossHandler
from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.members import MemberRecord, MemberTable
from torchft_x.core.quorum.rule import Wait
from torchft_x.core.types import Quorum


class WaitCache:
    """Part of the lighthouse; shares its roll and tenure."""

    def __init__(self, config: LighthouseConfig, roll: MemberTable, tenure: QuorumState, alarm: LossHandler) -> None:
        self._config = config
        self._roll = roll  # every member heard of
        self._tenure = tenure  # who has asked, who is missing
        self._alarm = alarm  # knows who is over
        self._witness: MemberRecord | None = None  # a member that is waited for, of a quorum nobody follows
        self._until = -inf  # until then others are waited for, with whom a new lineage shall begin
        self._asks = -1  # the tenure's `asks` when the witness was found
        self._open: tuple[Quorum, ...] = ()  # quorums that must be followed, too, at that time

    def __repr__(self) -> str:
        return f"<WaitCache witness={self._witness}>"

    def lasts(self, now: float) -> bool:
        """True: `form` would say `Wait`. False: it has to be asked."""
        t, c = self._tenure, self._config
        asking = len(t.asking)
        if t.missing or asking < c.min_replicas:
            return True
        if t.current is not None:
            same = self._asks == t.asks and self._open is t.chain.open
            witness = self._witness if same else None
            if witness is not None and not self._alarm.is_given_up(witness, now):
                return True
            return same and now < self._until and bool(t.silent or t.presence.absent)
        if asking <= len(t.silent):
            return True
        return bool(t.silent or t.presence.absent) and now < t.first_asked + c.join_timeout

    def begin(self, decision: Wait, now: float) -> None:
        """`form` has said `Wait`: find a member that it waits for and that may still commit, if that is why.

        Of the quorum that nobody follows: when all of that one's members are over the wait is, whoever else still runs.
        """
        t = self._tenure
        running = (self._roll.get(name) for name in reversed(decision.running))
        self._witness = next((r for r in running if r is not None and not self._alarm.is_given_up(r, now)), None)
        self._until = decision.until if decision.until is not None else now
        self._asks, self._open = t.asks, t.chain.open
