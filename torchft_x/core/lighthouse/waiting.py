"""Decides which members nobody waits for any more, and tells the others. Tells those that ask what is waited for.

* **Lost** (R5): a member that is gone, or taken for gone. Every member that may stand in a collective with it is told, so
  that nobody waits for a time-out of the backend. Suspected members are probed.
* **Late** (R20): a member that lives, but with which the others can't train. It did not ask in time, or one of its nodes
  is silent (decision 40), or its link to another member is broken (decision 86). It is lost without proof.

A member may announce a pause: an evaluation, a checkpoint, a compile. Meanwhile its silence counts for nothing, and the
others wait for it as for a slow one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.failure_detector import suspect
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.membership.record import MemberRecord
from torchft_x.core.messages import Note
from torchft_x.core.messages.lighthouse import LighthouseEffect, Paused, Probe, Refuse, RevokeQuorum, SendWaits
from torchft_x.core.types import JoinReason, Member, group_of, listed
from torchft_x.timing import TIMING

CAUSES = ("exited", "left", "refused", "silent", "straggler", "superseded", "unreachable")
"""Why nobody waits for a member any more, in one word. In this order: its supervisor has reported its exit; it said
goodbye; it was turned away; nothing was heard of it; it did not come to the boundary; a newer attempt of its
group is here; its address refuses connections."""
REFUSED = "it was refused"  # why a member that was turned away is lost; its heartbeats count for nothing
# Seconds within which several suspicions of one member cause a single probe.
_PROBE_PAUSE = 0.05
LONGEST_PAUSE = 86400.0  # seconds; a longer one is cut to it
_Link = tuple[str, str]
"""Two members by replica id, in rank order; or their group ids."""
GoesWithout = Callable[[frozenset[str]], bool]
"""Function that returns whether a quorum can be formed at once without these replica ids."""


@dataclass(frozen=True, slots=True)
class _Series:
    """Failures in a row of one group, over all its attempts, or of the link of two groups. Times are monotonic."""

    at: float  # when the last one happened
    again: int = 0  # number of those that came soon after the one before
    until: float = 0.0  # the group is let in again from then on
    why: str = "it was late again and again"  # clause that says why the group is kept out


class Waiting:
    """Marks members lost or late, ends their quorum, probes suspects, lets late members in again, and reports waits.

    Part of the lighthouse; shares its member table and quorum state.
    """

    def __init__(self, config: LighthouseConfig, members: MemberTable, quorum_state: QuorumState) -> None:
        self._config = config
        self._members = members  # every known member
        self._quorum_state = quorum_state  # the present quorum; which members have asked, and which are missing
        self._series: dict[tuple[str, ...], _Series] = {}  # by group id (late), or by two (no link)
        self._judged = 0  # id of the quorum whose links were checked last
        self._told_at = -inf  # when members were last told what is waited for

    def __repr__(self) -> str:
        return f"<Waiting {sorted(self._series)}>"

    # --- lost ----------------------------------------------------------------------------------------------------

    def lose(
        self,
        record: MemberRecord,
        reason: str,
        cause: str,
        *,
        proof: str = "",
        late: bool = False,
        quietly: bool = False,
        left: str = "",
    ) -> list[LighthouseEffect]:
        """Mark this member lost, so that nobody waits for it, and tell the others if that is new.

        `cause`: one of `CAUSES`. `proof`, `late`: as for `MemberTable.lose`. `quietly`: it stood at a boundary, so no
        collective breaks. `left`: the words for a leave in good order; '': it did not leave so.
        """
        if not self._members.lose(record, reason, proof=proof, late=late):
            return []
        cur = self._quorum_state.current
        if cur is None or record.replica_id not in self._quorum_state.inside or quietly:
            return []
        text = f"{record.replica_id} has {left}." if left else f"{record.replica_id} is lost: {reason}."
        note = Note("member_lost", text, record.replica_id, cur.id, cause=cause)
        return [note, *self.end_quorum((record.replica_id,), text, spare=record, left=bool(left))]

    def end_quorum(
        self, lost: tuple[str, ...], reason: str, *, spare: MemberRecord, left: bool = False
    ) -> list[LighthouseEffect]:
        """Tell the present quorum's members but `spare` to leave its collectives now (R5).

        Members that have asked are out of them already, and members that are away are told when they come back.
        """
        cur = self._quorum_state.current
        if cur is None:
            return []
        self._quorum_state.broken = reason
        running = [r for r in self._named(self._quorum_state.missing) if r is not spare]
        sessions = tuple(r.session for r in running if r.session is not None and self._quorum_state.holds_current(r))
        return [RevokeQuorum(cur.id, lost, reason, left, sessions)] if sessions else []

    def notify(self, record: MemberRecord, reason: str) -> list[LighthouseEffect]:
        """Tell one member, once, that its quorum is over and it must ask, because it was lost or missed something."""
        if record.notified or record.session is None:
            return []
        record.notified = True
        if record.lost:
            text = f"{record.replica_id} was taken for lost: {record.lost}."
            return [RevokeQuorum(record.quorum_id, (record.replica_id,), text, sessions=(record.session,))]
        return [RevokeQuorum(record.quorum_id, (), reason, sessions=(record.session,))]

    def refuse(self, record: MemberRecord, sentence: str) -> list[LighthouseEffect]:
        """Turn a member away for good: close its session, refuse its calls, and mark it lost."""
        session, calls = record.session, record.calls
        self._members.close(record)
        self._members.answer(record)
        effects: list[LighthouseEffect] = [Refuse(sentence, call=call) for call in calls]
        if session is not None:
            effects.append(Refuse(sentence, session=session))
        return effects + self.lose(record, REFUSED, "refused")

    def probe(self, record: MemberRecord, now: float) -> list[LighthouseEffect]:
        """Probe whether the member's address, if it is known, still accepts connections."""
        if not record.address:
            return []
        record.probed_at = now
        return [Probe(record.replica_id, record.address)]

    def probe_suspects(self, suspects: Iterable[str], now: float) -> list[LighthouseEffect]:
        """Probe these members, to which another member's connection broke. If they are dead, their address refuses."""
        effects: list[LighthouseEffect] = []
        for record in self._members.named(suspects):
            if record.replica_id not in self._quorum_state.inside or record.lost:
                continue
            if record.probed_at is None or now - record.probed_at >= _PROBE_PAUSE:  # many may suspect one
                effects += self.probe(record, now)
        return effects

    def note_suspects(self, now: float) -> list[LighthouseEffect]:
        """Return a line for the log for each member that is silent though it runs, once."""
        notes: list[LighthouseEffect] = []
        limits = self._config.silence
        for record in self._members.silent(now, limits):
            text = "" if record.suspected else suspect(self._members.observation(record, limits, now), limits, now)
            if text:
                record.suspected = True
                notes.append(Note("suspect", f"{record.replica_id} {text}.", record.replica_id))
        return notes

    def on_probed(self, record: MemberRecord, refused: bool) -> list[LighthouseEffect]:
        """Mark the member lost if its address refused the probe, unless it was heard since the probe left.

        An accepted connect proves nothing. A refusal proves that the member is over only on the lighthouse's own boot.
        """
        if not refused or record.probed_at is None:
            return []
        record.refused = True
        same_host = bool(record.boot_id) and record.boot_id == self._config.boot_id
        reason = f"its address {record.address} refuses connections"
        return self.lose(record, reason, "unreachable", proof=reason if same_host else "")

    def is_over(self, record: MemberRecord, now: float) -> bool:
        """Return whether it is over (R9(b)), by the longest lease that the present quorum may have been sent with."""
        c, cur = self._config, self._quorum_state.current
        lease = max(c.lease, cur.lease if cur else 0.0) + c.lease_margin
        return record.is_over(now, lease=lease, alone=c.silence.alone)

    def is_given_up(self, record: MemberRecord, now: float) -> bool:
        """Return whether a new lineage may begin without the member's state.

        It must be over, and also proven to have ended, or away for `give_up_after` since its last lease. Clients of
        torchft, and members that were never sent a lease, need only be over.
        """
        if not self.is_over(record, now):
            return False
        known = record.proof or record.unary or record.lease_sent is None
        return bool(known) or now >= (record.lease_sent or 0.0) + self._config.give_up_after

    # --- late ----------------------------------------------------------------------------------------------------

    def kept_out(self, record: MemberRecord, now: float) -> float:
        """Return for how many seconds this member, which asks, must wait; 0: it need not.

        Each further try of a member that was late or unreachable again and again costs the others time.
        """
        series = self._series.get((group_of(record.replica_id),))
        others_go_on = self._quorum_state.inside - self._quorum_state.gone
        return max(0.0, series.until - now) if record.late and series is not None and others_go_on else 0.0

    def poll(self, now: float, goes_without: GoesWithout) -> list[LighthouseEffect]:
        """Leave out members that are late, and let in those that were kept out for long enough. Called at ticks.

        Nobody is left out where the others could not go on at once: they would wait all the same.
        """
        for record in self._members:
            if record.late and record.join is not None and not self.kept_out(record, now):
                self._members.find(record)
        host = self._config.silence.host
        cut = self._cut(now - host)
        late = [(record, waited) for record, waited in self._late(now) if record.replica_id not in cut]
        names = frozenset([*cut, *(record.replica_id for record, _ in late)])
        if not names or not goes_without(names):
            return []
        effects: list[LighthouseEffect] = []
        for record in self._named(cut):
            where = cut[record.replica_id]
            reason = f"it was waited for in a reduction, and its supervisor on {where} is silent for {host:g} s"
            effects += self.lose(record, reason, "silent", late=True)
        for record, waited in late:
            penalty = self._failed((group_of(record.replica_id),), now)
            others = sorted(self._quorum_state.asking)
            wait = f"{listed(others)} {'has' if len(others) == 1 else 'have'} waited for it"
            reason = f"its training thread does not come: {wait}, at last {waited:.1f} s at the boundary"
            effects += self.lose(record, reason, "straggler", late=True)
            if penalty:
                text = (
                    f"{record.replica_id} is late again and again; it is let in again in {penalty:g} s, as each time "
                    "holds the others up. If it is only slow, give the Manager a longer straggler_timeout."
                )
                effects.append(Note("kept_out", text, record.replica_id))
        return effects

    def part(self, members: Sequence[Member], now: float, goes_without: GoesWithout) -> list[LighthouseEffect]:
        """Leave out members that could not connect to another one again and again. Judge each quorum once.

        `members`: members of the next quorum, in rank order; all have asked.
        """
        if self._judged == self._quorum_state.quorum_id:
            return []
        self._judged = self._quorum_state.quorum_id
        waits = {
            link: self._failed((group_of(link[0]), group_of(link[1])), now) for link in self._broken_links(members)
        }
        broken = [link for link, seconds in waits.items() if seconds]
        effects: list[LighthouseEffect] = []
        for record in self._members.named(fewest_without([m.replica_id for m in members], broken, goes_without)):
            name = record.replica_id
            links = [link for link in broken if name in link]
            others = listed([other for link in links for other in link if other != name])
            seconds = max(waits[link] for link in links)
            why = f"the link between {name} and {others} is broken"
            self._members.lose(record, why, late=True)
            key = (group_of(name),)
            self._series[key] = replace(self._series.get(key, _Series(now)), until=now + seconds, why=why)
            text = (
                f"The link between {name} and {others} is broken: they could not connect with each other again, and the "
                f"lighthouse hears both; the others go on without {name}, which is let in again in {seconds:g} s."
            )
            effects.append(Note("kept_out", text, name))
        return effects

    # --- waits ---------------------------------------------------------------------------------------------------

    def pause(self, record: MemberRecord, event: Paused, now: float) -> list[LighthouseEffect]:
        """Record that this member announces a pause, or its end."""
        if event.seconds <= 0:
            record.pause_until = min(record.pause_until, now)
            return []
        record.pause_until, record.pause_reason = now + min(event.seconds, LONGEST_PAUSE), event.reason
        text = f"{record.replica_id} pauses for up to {event.seconds:g} s: {event.reason}."
        return [Note("pause", text, record.replica_id)]

    def tell(self, reason: str, ending: bool, now: float) -> list[LighthouseEffect]:
        """Tell each member that has asked, in each second of its wait, what is waited for. Called at ticks.

        `reason`: why there is no quorum; '' if one is about to form. `ending`: because the job is being finished.
        """
        pausing = [r for r in self._awaited if r.pause_until > now]
        pauses = "".join(f" {r.replica_id} pauses: {r.pause_reason}." for r in pausing)
        due: dict[tuple[str, bool], list[int]] = {}
        for record in self._members:
            if record.join is None or record.session is None:
                continue
            seconds = (now - record.join.since) // 1.0
            if seconds < 1 or seconds == (self._told_at - record.join.since) // 1.0:
                continue
            if left := self.kept_out(record, now):
                why = self._series[(group_of(record.replica_id),)].why
                text = f"{record.replica_id} is left out: {why}; it is let in again in {left:.0f} s."
                due.setdefault((text, False), []).append(record.session)
            elif reason:
                # A supervisor reports when the process that finishes the job has ended.
                prolongs = bool(pausing) or (ending and bool(record.attempt_id.token))
                due.setdefault((reason + pauses, prolongs), []).append(record.session)
        self._told_at = now
        return [SendWaits(text, prolongs, tuple(sessions)) for (text, prolongs), sessions in due.items()]

    # --- inside --------------------------------------------------------------------------------------------------

    def _broken_links(self, members: Sequence[Member]) -> list[_Link]:
        """Return the pairs of these members of which one could not reach the other in the present quorum."""
        inside = [m.replica_id for m in members if m.replica_id in self._quorum_state.inside]
        index = {name: i for i, name in enumerate(inside)}
        joins = [r.join for r in self._members.named(inside) if r.join is not None and r.join.unreached]
        pairs = {(index[j.member.replica_id], index[name]) for j in joins for name in j.unreached if name in index}
        return [(inside[a], inside[b]) for a, b in sorted({(min(p), max(p)) for p in pairs}) if a != b]

    @property
    def _awaited(self) -> list[MemberRecord]:
        """Members that are alive and have not asked: those of the present quorum, or all before the first one."""
        state = self._quorum_state
        return self._named(state.silent if state.current is None else state.missing)

    def _late(self, now: float) -> list[tuple[MemberRecord, float]]:
        """Return the members for which another one has waited as long as it said, each with the seconds waited."""
        state = self._quorum_state
        asked = [r for r in self._named(state.asking) if not state.inside or r.replica_id in state.inside]
        joins = [r.join for r in asked if r.join is not None]
        if not joins:
            return []
        first = min(j.since for j in joins)
        if state.current is None:
            since = first + TIMING.first_ask
        else:
            since = min(j.since + max(j.patience, TIMING.ask_moment) for j in joins)

        def until(r: MemberRecord) -> float:
            """Return the end of the wait for a member, which may announce a pause, or be about to reconnect."""
            connects = r.heard + TIMING.reconnect_last if r.session is None and not r.unary else since
            return max(since, connects, r.pause_until + since - first)

        return [(r, now - first) for r in self._awaited if now >= until(r)]

    def _cut(self, since: float) -> dict[str, str]:
        """Return the members that a reduction waited for and of which a node was not heard since then; and its host."""
        asked = self._named(self._quorum_state.asking)
        if not any(r.join is not None and r.join.reason is JoinReason.FAILED for r in asked):
            return {}
        found = {
            r.replica_id: self._members.supervisors.silent_host(r.attempt_id.token, since)
            for r in self._named(self._quorum_state.missing)
        }
        return {name: host for name, host in found.items() if host}

    def _failed(self, key: tuple[str, ...], now: float) -> float:
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

    def _named(self, names: Iterable[str]) -> list[MemberRecord]:
        return self._members.named(sorted(names))


def fewest_without(members: Sequence[str], broken: Collection[_Link], goes_without: GoesWithout) -> list[str]:
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
