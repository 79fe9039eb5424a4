"""The machine that decides membership. Events in, effects out; the contract with its shell is in `core.messages`.

What it may decide is in `core.formation` (pure), what it knows about each member in `core.liveness`; here events
change the one and ask the other. After every event it looks whether a quorum can be formed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torchft_x.core.formation import (
    Adopt,
    Candidate,
    Form,
    Fresh,
    Report,
    Situation,
    Start,
    Wait,
    form,
    listed,
    misfits,
    start,
)
from torchft_x.core.liveness import Record, Roll
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
    Tick,
    UnaryGone,
    UnaryJoin,
)
from torchft_x.core.types import JoinReason, Member, Quorum, State, group_number, group_of
from torchft_x.errors import ConfigError

# A member of the present quorum that is away is asked again this often whether it still accepts connections: only a
# refusal (or the end of its lease) lets a new lineage begin. Quicker repeats just after a stream broke, while a dying
# process closes its sockets one by one, are the shell's work.
_PROBE_AGAIN = 1.0
# A reason for waiting is worth a line in the log when somebody has waited this long.
_NOTE_WAIT_AFTER = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LighthouseConfig:
    """Settings of a lighthouse. Times in seconds."""

    min_replicas: int = 1
    """Fewest members of a quorum."""
    join_timeout: float = 0.1
    """How long a first quorum waits for groups that are alive but have not asked."""
    tick: float = 0.1
    """The shell sends a `Tick` at least this often."""
    heartbeat_timeout: float = 5.0
    """Silence after which a member is lost."""
    lease: float = 120.0
    """How long a group may go on in a quorum without hearing from the lighthouse (R16)."""
    lease_margin: float = 1.0
    """Added where the lighthouse waits for a lease to end: clocks do not run alike."""
    hello_grace: float = 1.0
    """How long a fresh lighthouse waits for groups that are running already (R8), unless `new_job`."""
    new_job: bool = True
    """Nothing can have come before, so a fresh lighthouse without a report starts at once (R8)."""
    restarted: bool = False
    """A lighthouse of this job has run before: without a report a fresh one waits for the old lease to end (R8)."""
    boot_id: str = ""
    """Of the own host: a refused connect proves death only there (R9)."""

    def __post_init__(self) -> None:
        if self.min_replicas < 1:
            raise ConfigError(f"min_replicas is {self.min_replicas}; a quorum has at least 1 member.")
        for name in ("tick", "heartbeat_timeout", "lease"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be a positive number of seconds.")
        for name in ("join_timeout", "lease_margin", "hello_grace"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it can't be negative.")


class Lighthouse:
    """See the module's first lines. One thread at a time; the shell holds the lock."""

    def __init__(self, config: LighthouseConfig, *, now: float, unix: float) -> None:
        """`now`: monotonic seconds, the clock of all later events. `unix`: the same instant in unix seconds."""
        self._config = config
        self._started_at = now
        self._unix = unix
        self._now = now  # of the latest event
        self._next_id = int(unix * 1000) << 10  # R1: above every id of an earlier life, unless the clock went back
        self._number = 0  # of the latest quorum, for people
        self._cur: Quorum | None = None  # newest quorum issued or adopted
        self._inside: frozenset[str] = frozenset()  # replica ids of cur
        self._broken = ""  # why cur's members were told that it is over; '' while they were not
        self._fresh = True  # no quorum issued or adopted yet (R8)
        self._reports: dict[str, Report] = {}  # replica id -> what it reported; only while fresh
        self._roll = Roll(now)  # every member heard of
        self._announced: set[str] = set()  # groups whose supervisor is here
        self._asking: set[str] = set()  # candidates: joined and not lost
        self._missing: set[str] = set()  # of cur: neither joined nor lost; no successor while there is one
        self._layout = ""  # of all candidates that state one
        self._noted = ""  # reason for waiting that was noted last

    def __repr__(self) -> str:
        quorum = f"q{self._cur.number} {sorted(self._inside)}" if self._cur else "no quorum"
        return f"<Lighthouse {quorum} asking={sorted(self._asking)} {self.undecided}>"

    # --- what the shell may ask ----------------------------------------------------------------------------------

    @property
    def current(self) -> Quorum | None:
        """Newest quorum issued or adopted."""
        return self._cur

    @property
    def undecided(self) -> str:
        """Why there is no next quorum yet, for people; '' if nobody has asked for one."""
        if not self._asking:
            return ""
        outcome = self._outcome(self._now)
        return outcome.reason if isinstance(outcome, Wait) else ""

    def status(self, now: float) -> dict[str, Any]:
        """What the lighthouse knows, as JSON-able values. Ages in seconds."""
        return {
            "quorum": self._quorum_status(now),
            "undecided": self.undecided,
            "members": [self._member_status(r, now) for r in self._roll],
            "announced": sorted(self._announced),
            "fresh": self._fresh,
            "uptime": now - self._started_at,
            "min_replicas": self._config.min_replicas,
        }

    def _quorum_status(self, now: float) -> dict[str, Any] | None:
        q = self._cur
        if q is None:
            return None
        carriers = {m.replica_id for m in q.carriers}
        return {
            "id": q.id,
            "config_id": q.config_id,
            "number": q.number,
            "age": self._unix + (now - self._started_at) - q.created,
            "step": q.top.step,
            "committed_in": q.top.committed_in,
            "granted_through": q.granted_through,
            "lease": q.lease,
            "broken": self._broken,
            "members": [
                {"replica_id": m.replica_id, "step": m.state.step, "heals": m.replica_id not in carriers}
                for m in q.members
            ],
        }

    def _member_status(self, r: Record, now: float) -> dict[str, Any]:
        return {
            "replica_id": r.replica_id,
            "address": r.address,
            "library": r.library,
            "kind": "unary" if r.unary else ("session" if r.session is not None else "away"),
            "heard": now - r.heard,
            "in_quorum": r.replica_id in self._inside,
            "waits": r.join is not None,
            "waited": now - r.join.since if r.join else None,
            "reason": r.join.reason.value if r.join else None,
            "step": r.join.member.state.step if r.join else None,
            "lost": r.lost,
            "over": self._is_over(r, now),
        }

    # --- events --------------------------------------------------------------------------------------------------

    def handle(self, event: LighthouseEvent, now: float) -> list[LighthouseEffect]:
        """Take an event, return what the shell must do, in order. `now`: monotonic seconds."""
        self._now = now
        effects = self._take(event, now)
        effects += self._maybe_form(now)
        return effects

    def _take(self, event: LighthouseEvent, now: float) -> list[LighthouseEffect]:
        match event:
            case Hello():
                return self._on_hello(event, now)
            case Join():
                return self._on_join(event, now)
            case Leave():
                return self._on_leave(event, now)
            case Heard(session) | Healed(session):
                return self._on_heard(session, now)
            case Closed(session):
                return self._on_closed(session, now)
            case Probed(replica_id, refused):
                return self._on_probed(replica_id, refused)
            case LifeEnded(token, code):
                return self._on_life_ended(token, code)
            case GroupAnnounced(group, present):
                (self._announced.add if present else self._announced.discard)(group)
                return []
            case UnaryJoin(call, member):
                return self._on_unary_join(call, member, now)
            case UnaryGone(call):
                return self._on_unary_gone(call)
            case Heartbeat(replica_id):
                return self._on_heartbeat(replica_id, now)
            case Tick():
                return self._on_tick(now)

    def _on_hello(self, hello: Hello, now: float) -> list[LighthouseEffect]:
        if self._roll.has_ended(hello.life):
            text = f"{hello.replica_id} can't join: its supervisor has reported that this process ended."
            return [Refuse(text, session=hello.session)]
        newer = self._roll.superseded_by(hello)
        if newer:
            return [Fence(hello.session, newer)]
        effects = self._fence(self._roll.supersede(hello), hello.replica_id)
        record = self._roll.open(hello, now)
        self._recount(record)
        self._raise_ids(hello.state.committed_in)
        effects.append(Note("hello", f"{hello.replica_id} is here, at {hello.state}.", hello.replica_id))
        if hello.quorum is not None:
            self._raise_ids(hello.quorum.id)
            if self._fresh:
                self._reports[hello.replica_id] = Report(hello.quorum, hello.lease_left > 0)
        if self._fresh:
            return effects
        return effects + self._catch_up(record)

    def _fence(self, older: Record | None, by: str) -> list[LighthouseEffect]:
        """R2. The older life is told to stop and is not waited for, but that it is over is yet to be proven."""
        if older is None:
            return []
        effects: list[LighthouseEffect] = []
        if older.session is not None:
            effects.append(Fence(older.session, by))
            self._roll.close(older)
        self._recount(older)
        return effects + self._lose(older, f"{by}, a newer life of its group, is here")

    def _catch_up(self, record: Record) -> list[LighthouseEffect]:
        """A member has come back on a new session: does it still run what the others run?"""
        cur = self._cur
        if cur is None:
            return []
        inside = record.replica_id in self._inside
        if inside and record.quorum_id == cur.id:
            if record.lost or self._broken:
                return self._tell(record, record.lost or self._broken)
            return []
        effects: list[LighthouseEffect] = []
        if inside and not record.lost:
            # The quorum was sent, but the session broke first: the others wait for it in vain.
            effects += self._break((), f"{record.replica_id} never received it", spare=record)
        if record.quorum_id:
            effects += self._tell(record, f"quorum {cur.id} has been formed since")
        elif not inside:
            record.lost = ""
        return effects

    def _on_join(self, join: Join, now: float) -> list[LighthouseEffect]:
        record = self._roll.on(join.session)
        if record is None:
            return []  # R3: of a session that was replaced
        member = join.member
        if member.replica_id != record.replica_id:
            text = f"{record.replica_id} has sent a join for {member.replica_id}; a session speaks for one member."
            return self._refuse(record, text)
        record.heard = now
        record.address = member.address or record.address
        effects: list[LighthouseEffect] = []
        if record.replica_id not in self._inside and record.join is None:
            effects.append(Note("joined", f"{record.replica_id} asks to join at {member.state}.", record.replica_id))
        self._ask(record, Candidate(member, join.reason, now))
        for suspect in join.suspects:
            suspected = self._roll.get(suspect)
            if suspected is not None and suspect in self._inside and not suspected.lost:
                effects += self._probe(suspected, now)
        return effects + self._after_ask(record)

    def _on_unary_join(self, call: int, member: Member, now: float) -> list[LighthouseEffect]:
        record = self._roll.ensure(member.replica_id, now, unary=True)
        if not record.unary:
            text = f"{member.replica_id} already speaks on a session of its own; replica ids must differ."
            return [Refuse(text, call=call)]
        record.heard = now
        record.address = member.address
        record.calls = (*record.calls, call)
        since = record.join.since if record.join else now
        reason = JoinReason.FAILED if member.commit_failures > 0 else JoinReason.BOUNDARY
        self._ask(record, Candidate(self._with_committed_in(member), reason, since))
        return self._after_ask(record)

    def _ask(self, record: Record, candidate: Candidate) -> None:
        """Whoever asks is alive and waited for, whatever was thought of it before."""
        record.lost = ""
        record.proof = ""
        record.told = False
        record.join = candidate
        self._raise_ids(candidate.member.state.committed_in)
        self._recount(record)

    def _after_ask(self, record: Record) -> list[LighthouseEffect]:
        """R5: a member that asks because something went wrong takes the others out of the quorum, too."""
        effects: list[LighthouseEffect] = []
        cur = self._cur
        holds_cur = cur is not None and record.replica_id in self._inside and record.quorum_id == cur.id
        wrong = record.join is not None and record.join.reason in (JoinReason.FAILED, JoinReason.REJOINED)
        if holds_cur and wrong and not self._broken:
            effects += self._break((), f"a step of {record.replica_id} failed", spare=record)
        return effects + self._check_layout(record)

    def _check_layout(self, record: Record) -> list[LighthouseEffect]:
        """Refuse whoever does not fit. All candidates that state a layout state `_layout`, so most joins cost nothing."""
        layout = record.join.member.layout if record.join else ""
        if layout in ("", self._layout):
            return []
        effects: list[LighthouseEffect] = []
        lost = {r.replica_id for r in self._roll if r.lost}
        for replica_id, sentence in misfits(self._candidates(), self._cur, lost).items():
            misfit = self._roll.get(replica_id)
            if misfit is not None:
                effects += self._refuse(misfit, sentence)
        if record.join is not None:
            self._layout = layout
        return effects

    def _with_committed_in(self, member: Member) -> Member:
        """A peer's client tells its step only. Where it was in cur, cur says in which quorum it committed that step."""
        cur = self._cur
        if cur is None or member.replica_id not in self._inside:
            return member
        committed_in = {cur.top.step: cur.top.committed_in, cur.top.step + 1: cur.id}.get(member.state.step, 0)
        return replace(member, state=State(member.state.step, committed_in))

    def _on_leave(self, leave: Leave, now: float) -> list[LighthouseEffect]:
        record = self._roll.on(leave.session)
        if record is None:
            return []
        record.heard = now
        # At a boundary after a commit in cur nobody waits for it in a collective; otherwise somebody may.
        cur = self._cur
        clean = cur is None or record.join is not None or leave.state.committed_in == cur.id
        record.join = None
        text = f"{record.replica_id} leaves at {leave.state}."
        effects: list[LighthouseEffect] = [Note("leave", text, record.replica_id)]
        return effects + self._lose(record, "it has left", proof="it has left", quietly=clean)

    def _on_heard(self, session: int, now: float) -> list[LighthouseEffect]:
        record = self._roll.on(session)
        if record is None:
            return []
        record.heard = now
        if not record.lost or record.proof:
            return []
        if record.join is not None or not record.quorum_id:
            record.lost = ""  # it was silent, but stands where it stood: still waiting, or never in a quorum
            self._recount(record)
            return []
        return self._tell(record, record.lost)

    def _on_heartbeat(self, replica_id: str, now: float) -> list[LighthouseEffect]:
        record = self._roll.ensure(replica_id, now, unary=True)
        record.heard = now
        if record.unary:
            record.lost = ""  # the peer's rule: whoever beats is waited for
            self._recount(record)
        return []

    def _on_closed(self, session: int, now: float) -> list[LighthouseEffect]:
        record = self._roll.on(session)
        if record is None:
            return []
        self._roll.close(record)
        self._recount(record)
        return [] if record.proof else self._probe(record, now)

    def _on_probed(self, replica_id: str, refused: bool) -> list[LighthouseEffect]:
        record = self._roll.get(replica_id)
        if record is None or record.probed_at is None:
            return []
        if not refused or record.heard > record.probed_at:
            return []  # accepted proves nothing; a message since the probe left says more than the refusal
        same_host = bool(record.boot_id) and record.boot_id == self._config.boot_id
        reason = f"its address {record.address} refuses connections"
        return self._lose(record, reason, proof=reason if same_host else "")

    def _on_life_ended(self, token: str, code: int) -> list[LighthouseEffect]:
        effects: list[LighthouseEffect] = []
        for record in self._roll.end(token):
            self._roll.close(record)
            self._recount(record)
            reason = f"its process ended with exit code {code}"
            effects += self._lose(record, reason, proof=reason)
        return effects

    def _on_unary_gone(self, call: int) -> list[LighthouseEffect]:
        for record in self._roll:
            if call in record.calls:
                record.calls = tuple(c for c in record.calls if c != call)
                if not record.calls:
                    record.join = None
                self._recount(record)
        return []

    def _on_tick(self, now: float) -> list[LighthouseEffect]:
        c = self._config
        effects: list[LighthouseEffect] = []
        forgiven = self._roll.forgive(now, c.tick)
        if forgiven > c.heartbeat_timeout:
            effects.append(Note("starved", f"The lighthouse was not scheduled for {forgiven:.1f} s; nobody is blamed."))
        for record in self._roll.silent(now, c.heartbeat_timeout):
            effects += self._lose(record, f"silent for {c.heartbeat_timeout:g} s")
        for replica_id in self._inside:
            inside = self._roll.get(replica_id)
            away = inside is not None and inside.session is None and not inside.unary and not inside.proof
            if inside is not None and away and now - (inside.probed_at or 0.0) >= _PROBE_AGAIN:
                effects += self._probe(inside, now)
        self._roll.prune(self._inside)
        return effects + self._note_wait(now)

    # --- consequences --------------------------------------------------------------------------------------------

    def _lose(self, record: Record, reason: str, *, proof: str = "", quietly: bool = False) -> list[LighthouseEffect]:
        """Nobody waits for this member from now on. `quietly`: it stood at a boundary, so no collective breaks."""
        record.proof = record.proof or proof
        if record.lost:
            return []
        record.lost = reason
        record.told = False
        self._recount(record)
        if self._cur is None or record.replica_id not in self._inside or quietly:
            return []
        text = f"{record.replica_id} is lost: {reason}."
        note = Note("member_lost", text, record.replica_id, self._cur.id)
        return [note, *self._break((record.replica_id,), text, spare=record)]

    def _break(self, lost: tuple[str, ...], reason: str, *, spare: Record) -> list[LighthouseEffect]:
        """Tell cur's other members to leave its collectives now. Those that have asked are out of them already."""
        cur = self._cur
        if cur is None:
            return []
        self._broken = reason
        sessions = []
        for member in cur.members:
            record = self._roll.get(member.replica_id)
            if record is None or record is spare or record.session is None or record.lost or record.join is not None:
                continue
            if record.quorum_id == cur.id:
                sessions.append(record.session)
        return [SendOver(tuple(sessions), cur.id, lost, reason)] if sessions else []

    def _tell(self, record: Record, reason: str) -> list[LighthouseEffect]:
        """Tell one member that the quorum it holds is over, once: it was lost, or missed something, and must ask."""
        if record.told or record.session is None:
            return []
        record.told = True
        lost = (record.replica_id,) if record.lost else ()
        return [SendOver((record.session,), record.quorum_id, lost, reason)]

    def _refuse(self, record: Record, sentence: str) -> list[LighthouseEffect]:
        session, calls = record.session, record.calls
        self._roll.close(record)
        record.calls = ()
        effects: list[LighthouseEffect] = [Refuse(sentence, call=call) for call in calls]
        if session is not None:
            effects.append(Refuse(sentence, session=session))
        self._recount(record)
        return effects + self._lose(record, "it was refused")

    def _probe(self, record: Record, now: float) -> list[LighthouseEffect]:
        if not record.address:
            return []
        record.probed_at = now
        return [Probe(record.replica_id, record.address)]

    def _raise_ids(self, heard: int) -> None:
        """R1: every new id is above every id ever heard."""
        self._next_id = max(self._next_id, heard + 1)

    def _recount(self, record: Record) -> None:
        """Keep the two sets that make 'not yet' cheap to see in step with the record."""
        replica_id = record.replica_id
        asks = record.join is not None and not record.lost
        (self._asking.add if asks else self._asking.discard)(replica_id)
        awaited = replica_id in self._inside and not asks and not record.lost
        (self._missing.add if awaited else self._missing.discard)(replica_id)

    # --- forming -------------------------------------------------------------------------------------------------

    def _maybe_form(self, now: float) -> list[LighthouseEffect]:
        effects: list[LighthouseEffect] = []
        if self._fresh and self._reports:
            outcome = self._start(now)
            if isinstance(outcome, Adopt):
                effects += self._adopt(outcome.quorum)
        if self._missing or not self._asking:
            return effects  # the common case, in constant time; `form` would say the same
        decision = self._outcome(now)
        return effects + self._issue(decision, now) if isinstance(decision, Form) else effects

    def _start(self, now: float) -> Start | Adopt | Wait:
        c = self._config
        lease = max([c.lease, *(r.quorum.lease for r in self._reports.values())])
        return start(
            Fresh(
                now=now,
                started_at=self._started_at,
                reports=self._reports,
                new_job=c.new_job,
                restarted=c.restarted,
                hello_grace=c.hello_grace,
                old_lease=lease + c.lease_margin,
            )
        )

    def _outcome(self, now: float) -> Form | Wait:
        if self._fresh:
            outcome = self._start(now)
            if isinstance(outcome, Wait):
                return outcome
        return form(self._situation(now))

    def _situation(self, now: float) -> Situation:
        candidates = self._candidates()
        present = {group_of(c.member.replica_id) for c in candidates}
        present |= {str(group_number(c.member.replica_id)) for c in candidates}
        members = [r for r in self._roll if r.replica_id in self._inside]
        return Situation(
            now=now,
            cur=self._cur,
            candidates=candidates,
            lost=frozenset(r.replica_id for r in members if r.lost),
            over=frozenset(r.replica_id for r in members if self._is_over(r, now)),
            broken=bool(self._broken),
            silent_healthy=frozenset(
                r.replica_id for r in self._roll if not r.lost and r.join is None and (r.unary or r.session is not None)
            ),
            absent_groups=frozenset(g for g in self._announced if g not in present),
            min_replicas=self._config.min_replicas,
            join_timeout=self._config.join_timeout,
        )

    def _candidates(self) -> tuple[Candidate, ...]:
        return tuple(r.join for r in self._roll if r.join is not None and not r.lost)

    def _is_over(self, record: Record, now: float) -> bool:
        c = self._config
        lease = max(c.lease, self._cur.lease if self._cur else 0.0) + c.lease_margin
        return record.is_over(now, lease=lease, heartbeat_timeout=c.heartbeat_timeout)

    def _adopt(self, quorum: Quorum) -> list[LighthouseEffect]:
        """R8: take over the newest quorum that was reported. Its members' leases began before this life did."""
        self._fresh = False
        self._reports = {}
        self._number = max(self._number, quorum.number)
        self._set_current(quorum)
        for member in quorum.members:
            record = self._roll.ensure(member.replica_id, self._started_at, unary=not member.library)
            record.address = record.address or member.address
            record.lease_sent = self._started_at
            self._recount(record)
        text = f"Adopted quorum {quorum.id} of {listed([m.replica_id for m in quorum.members])} at {quorum.top}."
        effects: list[LighthouseEffect] = [Note("adopted", text, quorum_id=quorum.id)]
        for record in self._roll:
            if record.replica_id in self._inside and record.lost:
                effects += self._break(
                    (record.replica_id,), f"{record.replica_id} is lost: {record.lost}.", spare=record
                )
            if record.quorum_id not in (0, quorum.id):
                effects += self._tell(record, f"quorum {quorum.id} has been formed since")
        return effects

    def _issue(self, decision: Form, now: float) -> list[LighthouseEffect]:
        effects: list[LighthouseEffect] = []
        if decision.new_lineage and self._cur is not None:
            text = (
                f"A new lineage begins: no member carries on q{self._cur.number} at {self._cur.top}, and all that "
                "could are over. Training goes on from the newest state among the members."
            )
            effects.append(Note("new_lineage", text, quorum_id=self._next_id))
        quorum = self._next_quorum(decision, now)
        sessions: list[int] = []
        calls: list[int] = []
        for member in quorum.members:
            record = self._roll.get(member.replica_id)
            if record is None:
                continue
            if record.session is not None:
                sessions.append(record.session)
            calls += record.calls
            record.join = None
            record.calls = ()
            record.quorum_id = quorum.id
            record.lease_sent = now
            self._asking.discard(member.replica_id)
        self._fresh = False
        self._reports = {}
        self._set_current(quorum)
        if decision.rebuild:
            text = f"Detected quorum change, bumping quorum_id to {quorum.id}"
            effects.append(Note("quorum_change", text, quorum_id=quorum.id))
        names = listed([m.replica_id for m in quorum.members])
        text = f"Quorum! q{quorum.number} (id {quorum.id}) at {quorum.top}: {len(quorum.members)} members, {names}"
        effects.append(Note("quorum", text, quorum_id=quorum.id))
        effects.append(Issue(quorum, tuple(sessions), tuple(calls)))
        return effects

    def _next_quorum(self, decision: Form, now: float) -> Quorum:
        quorum_id = self._next_id
        self._next_id += 1
        self._number += 1
        top = max((m.state for m in decision.members if not m.torn), default=State())
        return Quorum(
            id=quorum_id,
            config_id=quorum_id if decision.rebuild or self._cur is None else self._cur.config_id,
            number=self._number,
            members=decision.members,
            created=self._unix + (now - self._started_at),
            granted_through=top.step + 1,  # one step at a time, until part 3 sizes grants (R7)
            lease=self._config.lease,
        )

    def _set_current(self, quorum: Quorum) -> None:
        self._cur = quorum
        self._inside = frozenset(m.replica_id for m in quorum.members)
        self._broken = ""
        self._missing = set(self._inside)
        self._noted = ""

    def _note_wait(self, now: float) -> list[LighthouseEffect]:
        """A line for the log when somebody waits and the reason is a new one."""
        waited = max((now - c.since for c in self._candidates()), default=0.0)
        if waited < _NOTE_WAIT_AFTER:
            return []
        reason = self.undecided
        if not reason or reason == self._noted:
            return []
        self._noted = reason
        return [Note("undecided", reason)]
