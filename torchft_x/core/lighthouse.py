"""The lighthouse's machine: sessions and joins in, quorums and losses out (R1-R9).

It keeps everything in memory. What must survive its death is only that ids grow, and that comes from the clock (R1);
members tell a fresh lighthouse the rest (R8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchft_x.core.formation import Candidate, Form, View, form
from torchft_x.core.messages import (
    Closed,
    Fence,
    GroupAnnounced,
    Healed,
    Heard,
    Heartbeat,
    Hello,
    Issue,
    Join,
    Leave,
    LifeEnded,
    LighthouseEffect,
    LighthouseEvent,
    Note,
    Probe,
    Probed,
    Refuse,
    SendOver,
    UnaryGone,
    UnaryJoin,
)
from torchft_x.core.roll import DelayGauge, Entry
from torchft_x.core.types import JoinReason, Member, Quorum, group_number, group_of
from torchft_x.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LighthouseConfig:
    """Settings, in seconds. Names and defaults of the peer's Python class. Raises `ConfigError` naming the field."""

    min_replicas: int = 1
    join_timeout: float = 0.1
    """How long the first quorum waits for healthy groups that have not asked."""
    tick: float = 0.1
    heartbeat_timeout: float = 5.0
    """Silence after which a member is lost."""
    lease: float = 120.0
    """How long a member may commit in a quorum without hearing of us."""
    lease_margin: float = 1.0
    hello_grace: float = 1.0
    """How long a fresh lighthouse of unknown age listens for members of an earlier life (R8)."""
    new_job: bool = True
    """The job is known to be new: the first quorum needs no grace (R8)."""
    boot_id: str = ""
    """Of our host; a refused connect proves a death only on the same boot (R9)."""

    def __post_init__(self) -> None:
        if self.min_replicas < 1:
            raise ConfigError(f"min_replicas is {self.min_replicas}; it must be at least 1.")
        for name in ("tick", "heartbeat_timeout", "lease"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be a positive number of seconds.")
        for name in ("join_timeout", "lease_margin", "hello_grace"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must not be negative.")


class Lighthouse:
    """The machine. `now` is monotonic seconds; `unix` only dates quorums and starts the ids."""

    def __init__(self, config: LighthouseConfig, *, now: float, unix: float) -> None:
        self.config = config  # fixed
        self.current: Quorum | None = None  # newest quorum issued or adopted
        self.undecided = ""  # why no quorum forms now, for people
        self._started = now  # R8 counts the grace and the lease from here
        self._unix = unix - now  # added to `now` it dates a quorum
        self._next_id = int(unix * 1000) << 10  # R1: above every id of earlier lives
        self._number = 0  # quorums of this life, for people
        self._entries: dict[str, Entry] = {}  # by replica id
        self._sessions: dict[int, str] = {}  # open session -> replica id
        self._announced: set[str] = set()  # groups whose supervisor is here
        self._fresh = True  # no quorum issued yet in this life
        self._adopted = False  # `current` comes from members' reports
        self._pending = ""  # why the current quorum is over; empty: it stands
        self._gauge = DelayGauge(config.tick, now)  # our own scheduling delay

    def __repr__(self) -> str:
        q = f"q{self.current.number}" if self.current else "none"
        return f"Lighthouse({q}, {len(self._entries)} members known, undecided: {self.undecided or '-'})"

    def handle(self, event: LighthouseEvent, now: float) -> list[LighthouseEffect]:
        """Take one event and return what is to be done."""
        effects: list[LighthouseEffect] = []
        if isinstance(event, Hello):
            effects += self._hello(event, now)
        elif isinstance(event, (Join, Leave, Healed, Heard, Closed)):
            effects += self._of_session(event, now)
        elif isinstance(event, Probed):
            effects += self._probed(event)
        elif isinstance(event, LifeEnded):
            effects += self._life_ended(event)
        elif isinstance(event, GroupAnnounced):
            (self._announced.add if event.present else self._announced.discard)(event.group)
        elif isinstance(event, UnaryJoin):
            effects += self._unary_join(event, now)
        elif isinstance(event, UnaryGone):
            self._unary_gone(event.call)
        elif isinstance(event, Heartbeat):
            self._heartbeat(event.replica_id, now)
        else:
            effects += self._tick(now)
        return effects + self._maybe_form(now)

    # --- sessions --------------------------------------------------------------------------------------------------------

    def _hello(self, hello: Hello, now: float) -> list[LighthouseEffect]:
        newer = self._newer_life(hello)
        if newer is not None:
            return [Fence(hello.session, newer)]
        entry = self._entries.setdefault(hello.replica_id, Entry(hello.replica_id, now))
        if entry.ended:  # a life that was reported dead can't come back
            sentence = f"{hello.replica_id} has left or was reported dead; a new life needs a new replica id."
            return [Refuse(sentence, session=hello.session)]
        effects = self._fence_older(hello)
        if entry.session is not None:
            self._sessions.pop(entry.session, None)
        entry.greet(hello, now)
        self._sessions[hello.session] = hello.replica_id
        if hello.quorum is not None:
            self._next_id = max(self._next_id, hello.quorum.id + 1)  # R1
            self._adopt(hello.quorum)
        return effects + self._remind(entry)

    def _adopt(self, told: Quorum) -> None:
        """R8: a fresh lighthouse takes over the newest quorum any member tells of."""
        if self._fresh and (self.current is None or told.id > self.current.id):
            self.current, self._adopted, self._pending = told, True, ""
            self._number = max(self._number, told.number)

    def _newer_life(self, hello: Hello) -> str | None:
        """Replica id of a newer life of the same group, if one has said hello (R2)."""
        known = self._entries.get(hello.replica_id)
        if known is not None and known.fenced_by:
            return known.fenced_by
        for e in self._lives_of(hello.replica_id):
            if e.life > hello.life:
                return e.replica_id
        return None

    def _fence_older(self, hello: Hello) -> list[LighthouseEffect]:
        """R2: the newest life wins the name. Fenced is not dead: the lease of the old one still runs (R9b)."""
        effects: list[LighthouseEffect] = []
        for e in self._lives_of(hello.replica_id):
            if e.fenced_by:
                continue
            e.fenced_by, e.join = hello.replica_id, None
            if e.session is not None:
                effects.append(Fence(e.session, hello.replica_id))
                self._sessions.pop(e.session, None)
                e.session = None
            effects += self._lose(e, f"a newer life, {hello.replica_id}, has taken its place")
            if not e.over:
                effects.append(Probe(e.replica_id, e.address))
        return effects

    def _lives_of(self, replica_id: str) -> list[Entry]:
        """Other lives of the same group. A peer's clients never fence each other: their ids promise nothing."""
        group = group_of(replica_id)
        if ":" not in replica_id:
            return []
        return [
            e
            for e in self._entries.values()
            if e.replica_id != replica_id and not e.unary and ":" in e.replica_id and group_of(e.replica_id) == group
        ]

    def _of_session(self, event: Join | Leave | Healed | Heard | Closed, now: float) -> list[LighthouseEffect]:
        replica_id = self._sessions.get(event.session)
        if replica_id is None:
            return []  # an older session of somebody who has a newer one, or was fenced
        entry = self._entries[replica_id]
        if isinstance(event, Closed):
            return self._closed(entry)
        entry.last_heard = now
        if isinstance(event, Join):
            return self._join(entry, event, now)
        if isinstance(event, Leave):
            entry.over = entry.ended = True
            return [Note("leave", f"{replica_id} leaves.", replica_id), *self._lose(entry, "it left", graceful=True)]
        return self._remind(entry)

    def _join(self, entry: Entry, join: Join, now: float) -> list[LighthouseEffect]:
        refusal = self._refusal(join.member)
        if refusal:
            return [Refuse(refusal, session=join.session)]
        entry.lost = ""
        entry.join, entry.joined_at = join.member, now
        effects: list[LighthouseEffect] = []
        if join.reason in (JoinReason.FAILED, JoinReason.REJOINED):
            effects += self._end_current(entry.replica_id, (), f"{entry.replica_id} could not finish its step")
        for suspect in join.suspects:
            other = self._entries.get(suspect)
            if other is not None and not other.lost and not other.unary and other.address:
                effects.append(Probe(suspect, other.address))
        return effects

    def _closed(self, entry: Entry) -> list[LighthouseEffect]:
        self._sessions.pop(entry.session or 0, None)
        entry.session, entry.join = None, None  # R3
        return [] if entry.over or not entry.address else [Probe(entry.replica_id, entry.address)]

    def _remind(self, entry: Entry) -> list[LighthouseEffect]:
        """A member that was given up but is here again (it was stopped, say) must join: its quorum has ended."""
        was_lost, entry.lost = entry.lost, ""
        cur = self.current
        if entry.join is not None or entry.session is None or cur is None or not entry.holds:
            return []
        if (entry.holds == cur.id and not was_lost) or entry.reminded == entry.holds:
            return []
        entry.reminded = entry.holds
        return [SendOver((entry.session,), entry.holds, (), "the others went on without this group; join again")]

    def _refusal(self, member: Member) -> str:
        """Different buckets in one all-reduce kill gloo's process (SIGABRT): such a member never gets in."""
        if not member.layout:
            return ""
        others: list[Member] = []
        if self.current is not None:
            others = [m for m in self.current.carriers if m.replica_id != member.replica_id]
        waiting = sorted((e for e in self._entries.values() if e.waits), key=lambda e: e.joined_at)
        others += [e.join for e in waiting if e.join is not None and e.replica_id != member.replica_id]
        known = next((m for m in others if m.layout and not self._gone(m.replica_id)), None)
        if known is None or known.layout == member.layout:
            return ""
        return (
            f"{member.replica_id} would reduce other tensors than {known.replica_id} (layout {member.layout} against "
            f"{known.layout}): the groups' models, dtypes or bucket sizes differ; start all groups from the same script "
            "and settings."
        )

    def _gone(self, replica_id: str) -> bool:
        e = self._entries.get(replica_id)
        return e is None or e.over or bool(e.lost)

    # --- deaths ----------------------------------------------------------------------------------------------------------

    def _probed(self, event: Probed) -> list[LighthouseEffect]:
        entry = self._entries.get(event.replica_id)
        if entry is None or not event.refused or entry.session is not None:
            return []
        if entry.boot_id and entry.boot_id == self.config.boot_id:
            entry.over = True  # R9: the same boot refuses, so the process is gone
        return self._lose(entry, "its connection broke and its address refuses connections")

    def _life_ended(self, event: LifeEnded) -> list[LighthouseEffect]:
        effects: list[LighthouseEffect] = []
        for entry in self._entries.values():
            if event.life_token and entry.life.token == event.life_token and not entry.ended:
                entry.over = entry.ended = True
                effects += self._lose(entry, f"its supervisor says that it exited with code {event.code}")
        return effects

    def _lose(self, entry: Entry, why: str, *, graceful: bool = False) -> list[LighthouseEffect]:
        """Stop waiting for this member. If it is in the current quorum, the others hear of it at once."""
        entry.join = None
        if entry.lost:
            return []
        entry.lost = why
        if self.current is None or self.current.member(entry.replica_id) is None:
            return []
        if graceful:  # it left at a boundary: nobody's collective waits for it in this quorum
            return []
        note = Note("member_lost", f"{entry.replica_id} is lost: {why}.", entry.replica_id, self.current.id)
        return [note, *self._end_current(entry.replica_id, (entry.replica_id,), f"{entry.replica_id} is lost: {why}")]

    def _end_current(self, cause: str, lost: tuple[str, ...], reason: str) -> list[LighthouseEffect]:
        """R5: from now on the current quorum is over; everybody else in it is told."""
        cur = self.current
        if cur is None or cur.member(cause) is None:
            return []
        self._pending = self._pending or reason
        told = tuple(
            e.session
            for m in cur.members
            if m.replica_id != cause
            and (e := self._entries.get(m.replica_id)) is not None
            and e.session is not None
            and e.join is None
        )
        return [SendOver(told, cur.id, lost, reason)] if told else []

    def _tick(self, now: float) -> list[LighthouseEffect]:
        excess = self._gauge.excess(now)
        effects: list[LighthouseEffect] = []
        for entry in list(self._entries.values()):
            entry.last_heard = min(now, entry.last_heard + excess)
            silent = now - entry.last_heard
            if silent >= self.config.heartbeat_timeout and not entry.lost:
                effects += self._lose(entry, f"it was silent for {silent:.1f} s (heartbeat timeout)")
            if entry.lost and not entry.over:
                entry.over = entry.unary or now >= entry.lease_end
            if entry.over and (self.current is None or self.current.member(entry.replica_id) is None):
                self._forget(entry, now)
        return effects

    def _forget(self, entry: Entry, now: float) -> None:
        """Drop what can't matter any more; a reported life is kept a while, so that it can't come back (R2)."""
        if entry.session is None and now - entry.last_heard > 10 * self.config.heartbeat_timeout:
            del self._entries[entry.replica_id]

    # --- the peer's unary service ----------------------------------------------------------------------------------------

    def _unary_join(self, event: UnaryJoin, now: float) -> list[LighthouseEffect]:
        known = self._entries.get(event.member.replica_id)
        if known is not None and not known.unary and known.session is not None:
            sentence = f"{event.member.replica_id} has a session; it can't ask on the unary service too."
            return [Refuse(sentence, call=event.call)]
        self._heartbeat(event.member.replica_id, now)
        entry = self._entries[event.member.replica_id]
        entry.address, entry.over = event.member.address, False
        if entry.join is None:
            entry.joined_at = now
        entry.join, entry.call = event.member, event.call
        if event.member.commit_failures > 0:
            return self._end_current(entry.replica_id, (), f"{entry.replica_id} could not finish its step")
        return []

    def _unary_gone(self, call: int) -> None:
        for entry in self._entries.values():
            if entry.call == call:
                entry.call, entry.join = None, None  # the peer keeps it (D13): a quorum could name nobody who waits

    def _heartbeat(self, replica_id: str, now: float) -> None:
        entry = self._entries.setdefault(replica_id, Entry(replica_id, now))
        if entry.session is None:
            entry.unary = True
        entry.last_heard = now
        if entry.unary:
            entry.lost, entry.over = "", False

    # --- forming ---------------------------------------------------------------------------------------------------------

    def _maybe_form(self, now: float) -> list[LighthouseEffect]:
        outcome = form(self._view(now), now)
        if isinstance(outcome, Form):
            self.undecided = ""
            return self._issue(outcome, now)
        if outcome.reason == self.undecided:
            return []
        self.undecided = outcome.reason
        return [Note("waiting", outcome.reason)] if any(e.waits for e in self._entries.values()) else []

    def _view(self, now: float) -> View:
        entries = self._entries.values()
        cur = self.current
        names = {m.replica_id for m in cur.members} if cur else set()
        return View(
            candidates=tuple(Candidate(e.join, e.joined_at) for e in entries if e.waits and e.join is not None),
            cur=cur,
            lost=frozenset(e.replica_id for e in entries if e.replica_id in names and e.lost)
            | (self._unheard(now) if self._adopted else frozenset()),
            over=frozenset(e.replica_id for e in entries if e.replica_id in names and e.over)
            | (self._unheard(now) if self._adopted else frozenset()),
            healthy=sum(e.live for e in entries),
            absent=self._absent() if cur is None else 0,
            fresh=self._fresh_reason(now),
            min_replicas=self.config.min_replicas,
            join_timeout=self.config.join_timeout,
        )

    def _unheard(self, now: float) -> frozenset[str]:
        """Members of an adopted quorum that have not come in a whole lease: over by R9b."""
        cur = self.current
        if cur is None or now < self._started + self.config.lease + self.config.lease_margin:
            return frozenset()
        return frozenset(m.replica_id for m in cur.members if m.replica_id not in self._entries)

    def _absent(self) -> int:
        """Announced groups of which no member waits."""
        here = [e.replica_id for e in self._entries.values() if e.waits]
        groups = {group_of(r) for r in here} | {str(group_number(r)) for r in here}
        known = {group_of(r) for r in self._entries} | {str(group_number(r)) for r in self._entries}
        # A group that is connected but has not asked is counted among the healthy already.
        return sum(1 for g in self._announced if g not in groups and g not in known)

    def _fresh_reason(self, now: float) -> str:
        """R8: what a lighthouse without memory must wait for; empty when it may form."""
        if not self._fresh:
            return ""
        if self.current is None:
            left = 0.0 if self.config.new_job else self._started + self.config.hello_grace - now
            return f"listening {left:.1f} s more for groups of an earlier life" if left > 0 else ""
        missing = [
            m.replica_id
            for m in self.current.members
            if (e := self._entries.get(m.replica_id)) is None or not (e.over or e.holds == self.current.id or e.waits)
        ]
        left = self._started + self.config.lease + self.config.lease_margin - now
        if missing and left > 0:
            return f"waiting up to {left:.0f} s for {', '.join(missing)} of the quorum before this lighthouse started"
        return ""

    def _issue(self, outcome: Form, now: float) -> list[LighthouseEffect]:
        cur, config = self.current, self.config
        entries = [self._entries[m.replica_id] for m in outcome.members]
        same = cur is not None and [m.replica_id for m in cur.members] == [m.replica_id for m in outcome.members]
        failed = any(m.commit_failures > 0 for m in outcome.members) or bool(self._pending)
        quorum_id = self._next_id
        self._next_id += 1
        self._number += 1
        top = max((m.state for m in outcome.members if not m.torn), default=None)
        quorum = Quorum(
            id=quorum_id,
            config_id=cur.config_id if cur is not None and same and not failed and not self._fresh else quorum_id,
            number=self._number,
            members=outcome.members,
            created=self._unix + now,
            granted_through=(top.step if top else 0) + 1,  # one step at a time, until part 4
            lease=config.lease,
        )
        sessions = tuple(e.session for e in entries if e.session is not None and e.call is None)
        calls = tuple(e.call for e in entries if e.call is not None)
        for e in entries:
            e.join, e.call, e.lost, e.over, e.holds = None, None, "", False, quorum_id
            if not e.unary:
                e.lease_end = now + config.lease + config.lease_margin
        self.current, self._fresh, self._adopted, self._pending = quorum, False, False, ""
        effects: list[LighthouseEffect] = []
        if outcome.new_lineage and cur is not None:
            text = f"q{quorum.number} begins a new lineage: all members of q{cur.number} are over."
            effects.append(Note("new_lineage", text, quorum_id=quorum.id))
        return [*effects, Issue(quorum, sessions, calls)]

    # --- for people ------------------------------------------------------------------------------------------------------

    def status(self, now: float) -> dict[str, Any]:
        """A json-able picture: the quorum, who is known, who waits, and why nothing forms."""
        cur = self.current
        return {
            "quorum": None
            if cur is None
            else {
                "id": cur.id,
                "number": cur.number,
                "age": self._unix + now - cur.created,
                "top": cur.top.step,
                "members": [m.replica_id for m in cur.members],
            },
            "undecided": self.undecided,
            "members": [
                {
                    "replica_id": e.replica_id,
                    "address": e.address,
                    "heard": now - e.last_heard,
                    "waits": e.waits,
                    "lost": e.lost,
                    "over": e.over,
                    "fenced_by": e.fenced_by,
                }
                for e in self._entries.values()
            ],
            "announced": sorted(self._announced),
        }
