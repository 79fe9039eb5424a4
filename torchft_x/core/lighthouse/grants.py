"""Grants members many steps at once, so that they need not ask the lighthouse in every step (R5, R7).

All members of a quorum are told one number, the highest step they may run; the lighthouse never tells a smaller one.
So a pending change takes effect for all members at the first step that nobody was granted.
"""

from __future__ import annotations

from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.membership.record import MemberRecord
from torchft_x.core.messages.lighthouse import Extend, Hello, Join, LighthouseEffect, Progress
from torchft_x.core.types import JoinReason, Member

_SMALL_QUORUM = 200  # members up to which requests for grants of `return_seconds` are no burden


class Grants:
    """Decides how far the members of the present quorum may run. Keeps that in the quorum state.

    Part of the lighthouse; shares its quorum state.
    """

    def __init__(self, config: LighthouseConfig, quorum_state: QuorumState) -> None:
        self._config = config
        self._quorum_state = quorum_state  # the present quorum, and what has been granted in it

    def on_hello(self, hello: Hello) -> bool:
        """Return whether a hello shows that more was granted than known, and take that over; `release` must follow.

        A member may have run past the grant while it had no session (R16), or hold a grant of an earlier lighthouse.
        """
        cur = self._quorum_state.current
        if cur is None or hello.quorum is None or hello.quorum.id != cur.id:
            return False
        before = self._quorum_state.granted_through
        run = hello.state.step if hello.state.committed_in == cur.id else 0
        self._quorum_state.granted_through = max(before, hello.granted_through, run)
        self._quorum_state.reached = max(self._quorum_state.reached, run)
        return self._quorum_state.granted_through > before

    def release(self, members: MemberTable, now: float) -> list[LighthouseEffect]:
        """Let members that ask run on, where more turned out to be granted already.

        They have no reason to stop, and members that are further wait for them in a collective (R16).
        """
        effects: list[LighthouseEffect] = []
        for replica_id in sorted(self._quorum_state.asking):
            record = members.get(replica_id)
            if record is None or record.join is None:
                continue
            member, reason = record.join.member, record.join.reason
            if (
                self._may_run_on(record, member, reason, record.number)
                and member.state.step < self._quorum_state.granted_through
            ):
                effects.append(self._extend(record, record.number, now))
                members.withdraw(record)
        return effects

    def on_progress(self, record: MemberRecord, progress: Progress, now: float) -> list[LighthouseEffect]:
        """Answer every request about the present quorum. Grant more only while no change is pending."""
        quorum_state = self._quorum_state
        if (
            not quorum_state.holds_current(record)
            or progress.quorum_id != quorum_state.quorum_id
            or quorum_state.broken
            or record.lost
        ):
            return []
        self._grow(progress.step, progress.step_seconds, now)
        return [self._extend(record, progress.number, now)]

    def on_boundary(self, record: MemberRecord, join: Join, now: float) -> list[LighthouseEffect]:
        """Extend the grant of a member that asks at a boundary, if it may run on. Return [] if its join stands."""
        if not self._may_run_on(record, join.member, join.reason, join.number):
            return []
        step = join.member.state.step
        self._grow(step, join.step_seconds, now)
        return [self._extend(record, join.number, now)] if step < self._quorum_state.granted_through else []

    def _may_run_on(self, record: MemberRecord, member: Member, reason: JoinReason, number: int) -> bool:
        """Return whether this join asks for nothing but more steps in the present quorum.

        `shrink_only` is met, too: without a next quorum there are no newcomers. A member that has healed contributes
        already, or is not granted more.
        """
        quorum_state = self._quorum_state
        here = quorum_state.holds_current(record) and member.state.committed_in == quorum_state.quorum_id
        plain = reason in (JoinReason.BOUNDARY, JoinReason.HEALED) and not (member.torn or member.commit_failures)
        return bool(here and plain and number and not quorum_state.broken and not record.lost)

    def _grow(self, step: int, step_seconds: float, now: float) -> None:
        """Grant some steps beyond `step`, unless a change is pending."""
        self._quorum_state.reached = max(self._quorum_state.reached, step)
        if self._quorum_state.pending:
            return
        c = self._config
        steps = int(self._worth(now) / step_seconds) if step_seconds > 0 else 1
        more = step + min(max(steps, 1), c.grant_steps)
        self._quorum_state.granted_through = max(self._quorum_state.granted_through, more)

    def _worth(self, now: float) -> float:
        """Return how many seconds of steps a grant is worth.

        A newcomer waits for its end, and after a loss one is likely: the lost group, restarted.
        """
        c = self._config
        if now - self._quorum_state.lost_at >= c.return_within:
            return c.grant_seconds
        return min(c.grant_seconds, c.return_seconds * max(1.0, len(self._quorum_state.inside) / _SMALL_QUORUM))

    def _extend(self, record: MemberRecord, number: int, now: float) -> Extend:
        cur = self._quorum_state.current
        assert cur is not None
        assert record.session is not None
        record.lease_sent = self._quorum_state.leased = now
        return Extend(cur.id, self._quorum_state.granted_through, cur.lease, number, record.session)
