"""What one of several lighthouses must wait for before its first quorum: instead of `core.restart.recover` (R8).

It takes over the newest quorum it hears of as soon as enough members of every open one are here (`core.quorum.acceptors`). Until
then it leaves those that are here alone, for they may be on their way to another lighthouse. Leases prove nothing here:
another lighthouse may have renewed them.
"""

from __future__ import annotations

from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.core.messages.lighthouse import Hello
from torchft_x.core.quorum.acceptors import QuorumIntersection
from torchft_x.core.quorum.rule import Wait
from torchft_x.core.restart.recover import Adopt, MemberReport, Start
from torchft_x.core.types import Quorum


class StandbyRecovery:
    """The same questions as to a `RestartRecovery`."""

    def __init__(self, config: LighthouseConfig, coalition: QuorumIntersection) -> None:
        self._config = config
        self._coalition = coalition  # shared with the lighthouse
        self._reports: dict[str, MemberReport] = {}  # replica id -> what it said, of those that are here
        self._open: dict[int, Quorum] = {}  # quorums that must be followed
        self.is_open = True  # no quorum issued or taken over yet
        if config.legacy is not None:
            self.learn(config.legacy.quorum, *config.legacy.open)

    def hear(self, hello: Hello) -> None:
        """A member is here. The quorums that it names are told by `learn`."""
        if not self.is_open:
            return
        self._reports[hello.replica_id] = MemberReport(hello.quorum, hello.lease_left > 0, hello.granted_through)

    def learn(self, *quorums: Quorum) -> None:
        """There are these quorums."""
        for quorum in self._coalition.meet(quorums, tuple(self._open.values())):
            self._open[quorum.id] = quorum

    def forget(self, replica_id: str) -> None:
        """Whoever is not here any more may be told something else at another lighthouse."""
        self._reports.pop(replica_id, None)

    def lasts(self, now: float) -> bool:
        """True: `decide` would say `Wait`."""
        return isinstance(self.decide(now), Wait)

    def granted_through(self, quorum: Quorum) -> int:
        """The highest step that a member says it was granted in this quorum."""
        return max((r.granted_through for r in self._reports.values() if r.id == quorum.id), default=0)

    def end(self) -> None:
        """There is a quorum now; from here on the tenure decides."""
        self.is_open = False
        self._reports, self._open = {}, {}

    def decide(self, now: float) -> Start | Adopt | Wait:
        closes = self._coalition.closes
        if not self._open:
            return self._begin()
        newest = self._open[max(self._open)]
        open_ = [q for q in self._open.values() if q is newest or not closes(q, self._beyond(q))]
        for quorum in open_:
            lacking = self._coalition.lacking(quorum, self._reports)
            if lacking:
                return Wait(self._coalition.sentence(quorum, lacking), lease=True, elsewhere=True)
        return Adopt(newest, tuple(sorted((q for q in open_ if q is not newest), key=lambda q: q.id)))

    def _beyond(self, quorum: Quorum) -> set[str]:
        """Who says that it has received a newer one."""
        return {name for name, report in self._reports.items() if report.id > quorum.id}

    def _begin(self) -> Start | Wait:
        if self._config.standby:
            return Wait("This lighthouse is a standby: waiting until members of a quorum come over.", elsewhere=True)
        if self._config.restarted or not self._config.new_job:
            return Wait(
                "A lighthouse may have run before this one, and its groups may be at another one: waiting until members "
                "of a quorum come. If the job has not begun yet, or shall begin anew, stop all its lighthouses and start "
                "them again as those of a new job.",
                elsewhere=True,
            )
        return Start()
