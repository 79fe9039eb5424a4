"""Leaves live members with which the others can't train out of the next quorum, and lets them in again (R20).

Heartbeats say that a process lives, not that its training thread makes progress. So a member must ask for the next
quorum when the others have asked: a member that waits in a collective falls out of it and asks within milliseconds.
To leave a member out is cheap for both sides. It is lost without proof, as a silent one is; the others go on with the
gradients they have; and when it asks it copies their state. Its supervisor decides later, by evidence, whether to end
its process (launch/process/hangs.py).

A member over several nodes speaks on its first one. Two signs together show that another node is gone: others waited
in vain in a reduction, and that node's supervisor is silent. Then nobody waits for the member (decision 40).

A broken link between two members shows when they connect: both ask again, and name each other. Every quorum with both
would fail like the one before, so one of them is left out when that has happened twice (decision 86).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from torchft_x.core.lighthouse.loss import LossHandler
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.membership.record import MemberRecord
from torchft_x.core.messages.common import Note
from torchft_x.core.messages.lighthouse import LighthouseEffect, SendWaits
from torchft_x.core.types import JoinReason, Member, group_of, listed
from torchft_x.timing import TIMING

_Link = tuple[str, str]
"""Two members by replica id, in rank order; or their group ids."""
_LATE = "it was late again and again"


@dataclass(frozen=True, slots=True)
class _Series:
    """Failures in a row of one group, over all its attempts, or of the link of two groups. Times are monotonic."""

    at: float  # when the last one happened
    again: int = 0  # number of those that came soon after the one before
    until: float = 0.0  # the group is let in again from then on
    why: str = _LATE  # clause that says why the group is kept out


class Stragglers:
    """Decides which members are left out, and until when. Counts their failures.

    Part of the lighthouse; shares its member table and quorum state.
    """

    def __init__(self, members: MemberTable, quorum_state: QuorumState, losses: LossHandler) -> None:
        self._members = members  # every known member
        self._quorum_state = quorum_state  # says which members have asked, and which are missing
        self._losses = losses  # marks members lost
        self._series: dict[tuple[str, ...], _Series] = {}  # by group id (late), or by two (no link)
        self._judged = 0  # id of the quorum whose links were checked last
        self._out: set[str] = set()  # replica ids that were left out, and are not back

    def __repr__(self) -> str:
        return f"<Stragglers {sorted(self._series)}>"

    def keeps_out(self, record: MemberRecord, now: float) -> bool:
        """Return whether this member, which asks, must wait, because each further try costs the others time."""
        return record.late and now < self.out_until(record) and self._others_go_on

    def out_until(self, record: MemberRecord) -> float:
        """Return when the member's group may be let in again, if it is left out; otherwise a time in the past, or 0."""
        series = self._series.get((group_of(record.replica_id),))
        return series.until if series is not None else 0.0

    def notify(self, record: MemberRecord, now: float) -> list[LighthouseEffect]:
        """Tell a member that has asked how long it is kept out, if it is."""
        if record.session is None or not self.keeps_out(record, now):
            return []
        series = self._series[(group_of(record.replica_id),)]
        reason = f"{record.replica_id} is left out: {series.why}; it is let in again in {series.until - now:.0f} s."
        return [SendWaits((record.session,), reason, False)]

    def poll(self, now: float, host: float, goes_without: Callable[[frozenset[str]], bool]) -> list[LighthouseEffect]:
        """Leave out members that are late, and let in those that were kept out for long enough. Called at ticks.

        `host`: seconds of silence after which a host is lost. `goes_without`: whether a quorum can be formed at once if
        these members are lost. If not, nothing is won by leaving them out: the others would wait all the same.
        """
        if self._out:
            self._let_in(now)
        cut = self._cut(now - host)
        late = [(record, waited) for record, waited in self._late(now) if record.replica_id not in cut]
        out = [*self._records(cut), *(record for record, _ in late)]
        names = frozenset(record.replica_id for record in out)
        if not names or not goes_without(names):
            return []
        self._out |= names
        effects: list[LighthouseEffect] = []
        for record in self._records(cut):
            where = cut[record.replica_id]
            reason = f"it was waited for in a reduction, and its supervisor on {where} is silent for {host:g} s"
            effects += self._losses.lose(record, reason, "silent", late=True)
        for record, waited in late:
            kept_out = self._note((group_of(record.replica_id),), now)
            others = sorted(self._quorum_state.asking)
            wait = f"{listed(others)} {'has' if len(others) == 1 else 'have'} waited for it"
            reason = f"its training thread does not come: {wait}, at last {waited:.1f} s at the boundary"
            effects += self._losses.lose(record, reason, "straggler", late=True)
            if kept_out:
                text = (
                    f"{record.replica_id} is late again and again; it is let in again in {kept_out:g} s, as each time "
                    "holds the others up. If it is only slow, give the Manager a longer straggler_timeout."
                )
                effects.append(Note("kept_out", text, record.replica_id))
        return effects

    def part(
        self, members: Sequence[Member], now: float, goes_without: Callable[[frozenset[str]], bool]
    ) -> list[LighthouseEffect]:
        """Leave out members that could not connect to another one again and again. Judge each quorum once.

        `members`: members of the next quorum, in rank order; all have asked. `goes_without`: whether a quorum without
        these could be formed at once, at the same state.
        """
        if self._judged == self._quorum_state.quorum_id:
            return []
        self._judged = self._quorum_state.quorum_id
        failed = self._broken(members)
        waits = {link: self._note((group_of(link[0]), group_of(link[1])), now) for link in failed}
        broken = [link for link, seconds in waits.items() if seconds]
        out = fewest_without([m.replica_id for m in members], broken, goes_without)
        effects: list[LighthouseEffect] = []
        for record in self._members.named(out):
            name = record.replica_id
            links = [link for link in broken if name in link]
            others = listed([other for link in links for other in link if other != name])
            seconds = max(waits[link] for link in links)
            why = f"the link between {name} and {others} is broken"
            self._members.lose(record, why, late=True)
            key = (group_of(name),)
            self._series[key] = replace(self._series.get(key, _Series(now)), until=now + seconds, why=why)
            self._out.add(name)
            text = (
                f"The link between {name} and {others} is broken: they could not connect with each other again, and the "
                f"lighthouse hears both; the others go on without {name}, which is let in again in {seconds:g} s."
            )
            effects += [Note("kept_out", text, name), *self.notify(record, now)]
        return effects

    # --- inside --------------------------------------------------------------------------------------------------

    def _broken(self, members: Sequence[Member]) -> list[_Link]:
        """Return the pairs of these members of which one could not reach the other in the present quorum."""
        inside = [m.replica_id for m in members if m.replica_id in self._quorum_state.inside]
        index = {name: i for i, name in enumerate(inside)}
        joins = [r.join for r in self._members.named(inside) if r.join is not None and r.join.unreached]
        pairs = {(index[j.member.replica_id], index[name]) for j in joins for name in j.unreached if name in index}
        return [(inside[a], inside[b]) for a, b in sorted({(min(p), max(p)) for p in pairs}) if a != b]

    @property
    def _others_go_on(self) -> bool:
        """True while a member of the present quorum is not lost."""
        return bool(self._quorum_state.inside - self._quorum_state.gone)

    def _late(self, now: float) -> list[tuple[MemberRecord, float]]:
        """Return the members for which another one has waited as long as it said, each with the seconds waited."""
        quorum_state = self._quorum_state
        asked = self._records(quorum_state.asking)
        joins = [
            r.join
            for r in asked
            if r.join is not None and (not quorum_state.inside or r.replica_id in quorum_state.inside)
        ]
        if not joins:
            return []
        if quorum_state.current is None:
            since, waited_for = min(j.since for j in joins) + TIMING.first_ask, quorum_state.silent
        else:
            since, waited_for = min(j.since + max(j.patience, TIMING.ask_moment) for j in joins), quorum_state.missing
        first = min(j.since for j in joins)
        found = self._records(waited_for)
        # the wait for a member that pauses counts from the end of its pause
        return [(r, now - first) for r in found if now >= max(since, r.pause_until + since - first)]

    def _cut(self, since: float) -> dict[str, str]:
        """Return the members that a reduction waited for and of which a node was not heard since then; and its host."""
        asked = self._records(self._quorum_state.asking)
        if not any(r.join is not None and r.join.reason is JoinReason.FAILED for r in asked):
            return {}
        found = {
            r.replica_id: self._members.supervisors.silent_host(r.attempt_id.token, since)
            for r in self._records(self._quorum_state.missing)
        }
        return {name: host for name, host in found.items() if host}

    def _note(self, key: tuple[str, ...], now: float) -> float:
        """Record a failure of this group or link.

        Return for how many seconds a member is kept out; 0: it is the first failure in a long time.
        """
        last = self._series.get(key)
        if last is None or now - last.at > TIMING.late_again + max(0.0, last.until - last.at):
            self._series[key] = _Series(now)
            return 0.0
        penalty = min(TIMING.late_penalty * 2.0**last.again, TIMING.late_penalty_most)
        self._series[key] = _Series(now, last.again + 1, now + penalty)
        return penalty

    def _let_in(self, now: float) -> None:
        out = [r for r in self._records(self._out) if r.late]
        self._out = {r.replica_id for r in out}
        for record in out:
            if record.join is not None and not self.keeps_out(record, now):
                self._members.find(record)

    def _records(self, names: Iterable[str]) -> list[MemberRecord]:
        return self._members.named(sorted(names))


def fewest_without(
    members: Sequence[str], broken: Collection[_Link], goes_without: Callable[[frozenset[str]], bool]
) -> list[str]:
    """Return whom to leave out of `members` (replica ids in rank order), so that none of the `broken` links is left.

    The member with the most broken links goes first, and of two with as many the later one in rank order. Return []
    where the others could not go on: then nothing is won by leaving a member out.
    """
    index = {name: i for i, name in enumerate(members)}
    out: list[str] = []
    left = list(broken)
    while left:
        bad = Counter(name for link in left for name in link)
        order = sorted(bad, key=lambda name: (-bad[name], -index[name]))
        found = next((name for name in order if goes_without(frozenset([*out, name]))), None)
        if found is None:
            return []
        out.append(found)
        left = [link for link in left if found not in link]
    return out
