"""What a lighthouse that has just started must wait for (R8). A pure function, and the memory it needs until then.

All of a lighthouse's memory dies with it. Members tell the next one which quorum they are in, and it takes over the
newest of these, but only when no newer one can exist that nobody has told it about.

What the lighthouse before this one has written down needs no members to tell it (R8c, `QuorumTransition.inherit`): every quorum
was written there before it was sent, so that no newer one exists, and there is nothing to wait for.

Without that, it is enough that all of its members are here and know nothing newer. Some of them may not have received
it: the lighthouse may have died while it was sending it. Then nothing was committed in it, as that takes all members, and it is over. What
these have received last must not have been followed by anybody else, so that its members must all be here, too. That a
quorum is followed by one of which its own members know nothing is ruled out by `core.quorum.open_quorums`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.core.messages.lighthouse import Hello
from torchft_x.core.quorum.rule import Wait
from torchft_x.core.types import Member, Quorum, listed


@dataclass(frozen=True, slots=True)
class MemberReport:
    """What a member said in its hello about the quorum it is in."""

    quorum: Quorum | None  # None: it has never received one
    lease_valid: bool
    granted_through: int = 0

    @property
    def id(self) -> int:
        """0: it has never received one."""
        return self.quorum.id if self.quorum is not None else 0


@dataclass(frozen=True, slots=True)
class Start:
    """There is nothing to take over: begin with a first quorum."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take this quorum over as the current one."""

    quorum: Quorum
    older: tuple[Quorum, ...] = ()  # what those of its members hold that have not received it


@dataclass(frozen=True, kw_only=True, slots=True)
class Fresh:
    """What a lighthouse knows before its first quorum. Times in monotonic seconds."""

    now: float
    started_at: float
    reports: Mapping[str, MemberReport]  # replica id -> what it reported in person
    new_job: bool  # told that nothing can have come before
    restarted: bool  # told that a lighthouse has run before
    hello_grace: float
    old_lease: float  # lease plus margin: no grant of an earlier lighthouse outlives this


class RestartRecovery:
    """What is reported to a lighthouse before its first quorum."""

    def __init__(self, config: LighthouseConfig, started_at: float) -> None:
        self._config = config
        self._started_at = started_at
        self._reports: dict[str, MemberReport] = {}  # replica id -> what it reported
        self._newest: Quorum | None = None  # of those reported
        self._reporters = 0  # members of it that can report: not those of the peer's library
        self._unread = False  # somebody has reported since `decide` was asked last
        self.is_open = True  # no quorum issued or adopted yet

    def hear(self, hello: Hello) -> None:
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
        """Whether `decide`, which looks at every member, need not be asked: fewer have reported than the newest quorum has
        members, or nobody has since it was asked. Time counts at ticks."""
        return self._newest is not None and (not self._unread or len(self._reports) < self._reporters)

    def granted_through(self, quorum: Quorum) -> int:
        """The highest step that a member says it was granted in this quorum."""
        return max((r.granted_through for r in self._reports.values() if r.id == quorum.id), default=0)

    def end(self) -> None:
        """There is a quorum now; from here on the tenure decides."""
        self.is_open = False
        self._reports, self._newest = {}, None

    def decide(self, now: float) -> Start | Adopt | Wait:
        c, self._unread = self._config, False
        reports = self._reports if self._newest is not None else {}  # nobody has anything to take over: said at once
        lease = max([c.lease, *(r.quorum.lease for r in reports.values() if r.quorum is not None)])
        return start(
            Fresh(
                now=now,
                started_at=self._started_at,
                reports=reports,
                new_job=c.new_job,
                restarted=c.restarted,
                hello_grace=c.hello_grace,
                old_lease=lease + c.lease_margin,
            )
        )


def start(fresh: Fresh) -> Start | Adopt | Wait:
    """R8. The first caller is not enough, and neither are all but the dead: the newest quorum may be unknown to them."""
    lease_end = fresh.started_at + fresh.old_lease
    lease_over = fresh.now >= lease_end
    newest = _newest(fresh.reports)
    if newest is None:
        if fresh.restarted and not lease_over:
            text = "A lighthouse has run before this one and no group has reported: waiting for its lease to end."
            return Wait(text, lease_end, lease=True)
        grace_end = fresh.started_at + fresh.hello_grace
        if not fresh.new_job and not fresh.restarted and fresh.now < grace_end:
            return Wait("This lighthouse has just started: giving groups that are running time to report.", grace_end)
        return Start()
    quorums = _together(newest, fresh.reports)
    absent = [r for r, m in _members(quorums).items() if not _vouches(fresh.reports.get(r), m)]
    if not absent or lease_over:
        return Adopt(newest, () if absent else quorums[1:])
    return Wait(
        f"This lighthouse has just started and takes over quorum {newest.id}: waiting until {listed(absent)} "
        "report with a valid lease, or until every lease from before the start is over.",
        lease_end,
        lease=True,
    )


def _newest(reports: Mapping[str, MemberReport]) -> Quorum | None:
    return max((r.quorum for r in reports.values() if r.quorum is not None), key=lambda q: q.id, default=None)


def _together(newest: Quorum, reports: Mapping[str, MemberReport]) -> tuple[Quorum, ...]:
    """The newest quorum; and what its members have received last, and the members of that, and so on."""
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


def _members(quorums: tuple[Quorum, ...]) -> dict[str, Member]:
    return {m.replica_id: m for q in reversed(quorums) for m in q.members}


def _vouches(report: MemberReport | None, member: Member) -> bool:
    """Whether this member of the newest quorum says that it knows nothing newer, and that nobody had to go on without it.

    A lease that has ended may have ended for the lighthouse before, too. Who never had a quorum has no lease, and nothing
    to go on with. A peer's client can't say, and holds no lease.
    """
    if not member.library:
        return True
    return report is not None and (report.quorum is None or report.lease_valid)
