"""Members that live and do not come: who is left out of the next quorum, and when it may be back (R20).

Heartbeats say that a process lives, not that its training thread gets anywhere. So what counts here is that a member
asks for the next quorum when the others have: whoever waits in a collective falls out of it and asks within
milliseconds. To leave a member out is cheap for both: it is lost without proof, as a silent one is, the others go on
with the gradients they have, and when it comes it copies their state. Whether its process is ended is another question,
which its supervisor answers later, by evidence (launch/process/hangs.py).

A member over several nodes speaks on its first one. That another is gone shows in a reduction that others waited for in
vain, and in that node's supervisor, which is silent: then the member is not waited for any longer (decision 83).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torchft_x.core.lighthouse.loss import LossHandler
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.members import MemberRecord, MemberTable
from torchft_x.core.messages.common import Note
from torchft_x.core.messages.lighthouse import LighthouseEffect, SendWaits
from torchft_x.core.types import JoinReason, group_of, listed
from torchft_x.timing import TIMING


@dataclass(frozen=True, slots=True)
class _Lateness:
    """Of one group, over all of its lives."""

    at: float  # when it was left out last
    again: int = 0  # times in a row that it was left out soon after that
    until: float = 0.0  # it is let in again from then on


class Stragglers:
    """Part of the lighthouse; shares its roll and tenure."""

    def __init__(self, roll: MemberTable, tenure: QuorumState, alarm: LossHandler) -> None:
        self._roll = roll  # every member heard of
        self._tenure = tenure  # who has asked, who is missing
        self._alarm = alarm  # says that one is gone
        self._groups: dict[str, _Lateness] = {}  # by group id
        self._out: set[str] = set()  # replica ids that were left out, and are not back

    def __repr__(self) -> str:
        return f"<Stragglers {sorted(self._groups)}>"

    def keeps_out(self, record: MemberRecord, now: float) -> bool:
        """Whether this member, which asks, must wait: it was left out again and again, and each time costs the others."""
        late = self._groups.get(group_of(record.replica_id))
        return bool(record.late and late is not None and now < late.until and self._others_go_on)

    def tell(self, record: MemberRecord, now: float) -> list[LighthouseEffect]:
        """This member has asked: if it is kept out, it hears for how long."""
        if record.session is None or not self.keeps_out(record, now):
            return []
        left = self._groups[group_of(record.replica_id)].until - now
        reason = f"{record.replica_id} was late again and again; it is let in again in {left:.0f} s."
        return [SendWaits((record.session,), reason, False)]

    def look(self, now: float, host: float, goes_without: Callable[[frozenset[str]], bool]) -> list[LighthouseEffect]:
        """At a tick: leave out who is late, and let in who was kept out for long enough.

        `host`: seconds of silence that mean that a host is lost. `goes_without`: whether a quorum can be formed at once if
        these members are lost. Otherwise nothing is won by leaving them out: the others would wait all the same.
        """
        if self._out:
            self._let_in(now)
        cut = self._cut(now - host)
        late = [(record, waited) for record, waited in self._late(now) if record.replica_id not in cut]
        out = [*self._records(cut), *(record for record, _ in late)]
        names = frozenset(record.replica_id for record in out)
        if not names or not goes_without(names):
            return []
        for record in out:
            record.late = True
        self._out |= names
        effects: list[LighthouseEffect] = []
        for record in self._records(cut):
            where = cut[record.replica_id]
            reason = f"it was waited for in a reduction, and its supervisor on {where} is silent for {host:g} s"
            effects += self._alarm.lose(record, reason, "silent")
        for record, waited in late:
            kept_out = self._note(record, now)
            others = sorted(self._tenure.asking)
            wait = f"{listed(others)} {'has' if len(others) == 1 else 'have'} waited for it"
            reason = f"its training thread does not come: {wait}, at last {waited:.1f} s at the boundary"
            effects += self._alarm.lose(record, reason, "straggler")
            if kept_out:
                text = (
                    f"{record.replica_id} is late again and again; it is let in again in {kept_out:g} s, as each time "
                    "holds the others up. If it is only slow, give the Manager a longer straggler_timeout."
                )
                effects.append(Note("kept_out", text, record.replica_id))
        return effects

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _others_go_on(self) -> bool:
        """Whether somebody of the present quorum is not lost."""
        return bool(self._tenure.inside - self._tenure.gone)

    def _late(self, now: float) -> list[tuple[MemberRecord, float]]:
        """Those for whom a member has waited for as long as it said, each with the seconds."""
        tenure = self._tenure
        asked = self._records(tenure.asking)
        joins = [r.join for r in asked if r.join is not None and (not tenure.inside or r.replica_id in tenure.inside)]
        if not joins:
            return []
        if tenure.current is None:
            since, waited_for = min(j.since for j in joins) + TIMING.first_ask, tenure.silent
        else:
            since, waited_for = min(j.since + max(j.patience, TIMING.ask_moment) for j in joins), tenure.missing
        first = min(j.since for j in joins)
        found = self._records(waited_for)
        # an announced pause counts from its end on
        return [(r, now - first) for r in found if now >= max(since, r.pause_until + since - first)]

    def _cut(self, since: float) -> dict[str, str]:
        """Those for whom a member has waited in a reduction, while one of their nodes was not heard `since` then; and which."""
        asked = self._records(self._tenure.asking)
        if not any(r.join is not None and r.join.reason is JoinReason.FAILED for r in asked):
            return {}
        found = {
            r.replica_id: self._roll.supervisors.silent_host(r.life.token, since)
            for r in self._records(self._tenure.missing)
        }
        return {name: host for name, host in found.items() if host}

    def _note(self, record: MemberRecord, now: float) -> float:
        """It is left out now. Returns for how many seconds it is kept out; 0: it may be back at once."""
        group = group_of(record.replica_id)
        late = self._groups.get(group)
        if late is None or now - late.at > TIMING.late_again + max(0.0, late.until - late.at):
            self._groups[group] = _Lateness(now)
            return 0.0
        penalty = min(TIMING.late_penalty * 2.0**late.again, TIMING.late_penalty_most)
        self._groups[group] = _Lateness(now, late.again + 1, now + penalty)
        return penalty

    def _let_in(self, now: float) -> None:
        out = [r for r in self._records(self._out) if r.late]
        self._out = {r.replica_id for r in out}
        for record in out:
            if record.join is not None and not self.keeps_out(record, now):
                self._roll.find(record)
                self._tenure.recount(record)

    def _records(self, names: Iterable[str]) -> list[MemberRecord]:
        return self._roll.named(sorted(names))
