"""Decides what a lighthouse that has just started must wait for (R8): `decide_restart`, and the reports that it needs.

All of a lighthouse's memory dies with it, except a journal. Without a journal, members report which quorum they are in.
The next lighthouse takes over the newest of these, but only when no newer one can exist that was not reported to it.

With a journal from the lighthouse before, no members are needed (R8c, `QuorumTransition.inherit`). Every quorum was
written there before it was sent, so no newer one exists, and there is nothing to wait for.

Without a journal, it is enough that all members of the newest quorum are here and know nothing newer. Some of them may
not have received it, if the lighthouse died while sending it. Then nothing was committed in it, as that takes all
members, and it is over. Nobody else may have followed the quorum that these members received last, so all of that
quorum's members must be here, too. `core.membership.current_quorum` rules out that a quorum is followed by one of which its
own members know nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.core.messages.lighthouse import Hello
from torchft_x.core.quorum import Wait
from torchft_x.core.types import Member, Quorum, listed


@dataclass(frozen=True, slots=True)
class MemberReport:
    """What a member reported in its hello about the quorum that it is in."""

    quorum: Quorum | None  # None: it has never received one
    lease_valid: bool
    granted_through: int = 0

    @property
    def id(self) -> int:
        """Id of the quorum; 0: the member has never received one."""
        return self.quorum.id if self.quorum is not None else 0


@dataclass(frozen=True, slots=True)
class NothingToAdopt:
    """The decision to form a first quorum, because there is nothing to take over."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """The decision to take this quorum over as the current one."""

    quorum: Quorum
    older: tuple[Quorum, ...] = ()  # quorums held by members of it that have not received it


class RestartRecovery:
    """The reports to a lighthouse before its first quorum. Decides when it may begin, and with what."""

    def __init__(self, config: LighthouseConfig, started_at: float) -> None:
        self._config = config
        self._started_at = started_at
        self._reports: dict[str, MemberReport] = {}  # replica id -> what it reported
        self._newest: Quorum | None = None  # newest quorum reported
        self._reporters = 0  # number of its members that can report, which clients of torchft can't
        self._unread = False  # whether a member has reported since the last `decide`
        self.is_open = True  # whether no quorum has been issued or adopted yet

    def receive(self, hello: Hello) -> None:
        if not self.is_open:
            return
        report = MemberReport(hello.quorum, hello.lease_left > 0, hello.granted_through)
        before, self._reports[hello.replica_id] = self._reports.get(hello.replica_id), report
        changed = before is not None and before.id != report.id
        if changed or report.id > (self._newest.id if self._newest is not None else 0):
            self._newest = _newest(self._reports)
            self._reporters = sum(bool(m.library) for m in self._newest.members) if self._newest is not None else 0
        self._unread = True

    def surely_waits(self) -> bool:
        """Return whether `decide`, which looks at every member, can be skipped. Time counts at ticks.

        It can while fewer members have reported than the newest quorum has, or none has since it was last asked.
        """
        return self._newest is not None and (not self._unread or len(self._reports) < self._reporters)

    def granted_through(self, quorum: Quorum) -> int:
        """Return the highest step that a member reports as granted in this quorum; 0: none does."""
        return max((r.granted_through for r in self._reports.values() if r.id == quorum.id), default=0)

    def end(self) -> None:
        """Forget the reports, because there is a quorum now. From here on the quorum state decides."""
        self.is_open = False
        self._reports, self._newest = {}, None

    def decide(self, now: float) -> NothingToAdopt | Adopt | Wait:
        self._unread = False
        reports = self._reports if self._newest is not None else {}  # no member holds a quorum: skip the reports
        return decide_restart(self._config, reports, started_at=self._started_at, now=now)


def decide_restart(
    config: LighthouseConfig, reports: Mapping[str, MemberReport], *, started_at: float, now: float
) -> NothingToAdopt | Adopt | Wait:
    """Decide whether to form a first quorum, to take one over, or to wait (R8). `reports`: by replica id.

    The first member to report is not enough, and neither are all but the dead: they may not know the newest quorum.
    """
    lease = max([config.lease, *(r.quorum.lease for r in reports.values() if r.quorum is not None)])
    lease_end = started_at + lease + config.lease_margin  # no grant of an earlier lighthouse outlives this
    newest = _newest(reports)
    if newest is None:
        if config.restarted and now < lease_end:
            text = "A lighthouse has run before this one and no group has reported: waiting for its lease to end."
            return Wait(text, lease_end)
        grace_end = started_at + config.hello_grace
        if not config.new_job and not config.restarted and now < grace_end:
            return Wait("This lighthouse has just started: giving groups that are running time to report.", grace_end)
        return NothingToAdopt()
    quorums = _together(newest, reports)
    members = {m.replica_id: m for q in reversed(quorums) for m in q.members}
    absent = [r for r, m in members.items() if not _vouches(reports.get(r), m)]
    if not absent or now >= lease_end:
        return Adopt(newest, () if absent else quorums[1:])
    return Wait(
        f"This lighthouse has just started and takes over quorum {newest.id}: waiting until {listed(absent)} "
        "report with a valid lease, or until every lease from before the start is over.",
        lease_end,
    )


def _newest(reports: Mapping[str, MemberReport]) -> Quorum | None:
    return max((r.quorum for r in reports.values() if r.quorum is not None), key=lambda q: q.id, default=None)


def _together(newest: Quorum, reports: Mapping[str, MemberReport]) -> tuple[Quorum, ...]:
    """Return the newest quorum, the quorums that its members received last, those that theirs did, and so on."""
    found: dict[int, Quorum] = {}
    todo = [newest]
    while todo:
        quorum = todo.pop()
        if quorum.id in found:
            continue
        found[quorum.id] = quorum
        held = (reports[m.replica_id].quorum for m in quorum.members if m.replica_id in reports)
        todo += {q.id: q for q in held if q is not None and q.id not in found}.values()
    return tuple(sorted(found.values(), key=lambda q: -q.id))


def _vouches(report: MemberReport | None, member: Member) -> bool:
    """Return whether this member reports that it knows nothing newer, and that nobody had to go on without it.

    A lease that has ended may have ended for the lighthouse before, too. A member that never had a quorum has no lease,
    and nothing to go on with. A client of torchft can't report, and holds no lease.
    """
    if not member.library:
        return True
    return report is not None and (report.quorum is None or report.lease_valid)
