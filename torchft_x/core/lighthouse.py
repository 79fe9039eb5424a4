"""The machine that decides membership. Events in, effects out; the contract with its shell is in `core.messages`.

The rules live next door: whether a quorum may form in `core.formation` and `core.takeover` (pure), who is here, lost or
over in `core.liveness`, who may train with whom in `core.likeness`, the present quorum in `core.tenure`, what is said
when somebody is gone in `core.alarm`. Here events change these, and after every event the question is asked again
whether a quorum can be formed.
"""

from __future__ import annotations

from math import inf
from typing import Any

from torchft_x.core.alarm import Alarm
from torchft_x.core.formation import Candidate, Form, Wait, form, listed, wait_for
from torchft_x.core.gathering import Gathering
from torchft_x.core.gone import Halt
from torchft_x.core.grants import Grants
from torchft_x.core.legacy import Kin, Legacy
from torchft_x.core.lighthouse_config import LighthouseConfig
from torchft_x.core.likeness import Likeness
from torchft_x.core.liveness import Record, Roll
from torchft_x.core.messages import (
    Closed,
    Fence,
    GroupAnnounced,
    GuardianGone,
    GuardianHeard,
    GuardianHere,
    HangUp,
    Healed,
    Heard,
    Heartbeat,
    Hello,
    Issue,
    Join,
    Keep,
    Leave,
    LifeBegun,
    LifeEnded,
    LifeHalted,
    LighthouseEffect,
    LighthouseEvent,
    Note,
    Paused,
    Probed,
    Progress,
    Refuse,
    Suspected,
    Tick,
    UnaryGone,
    UnaryJoin,
)
from torchft_x.core.others import Others
from torchft_x.core.patience import Patience
from torchft_x.core.pauses import Pauses
from torchft_x.core.recovery import stranded
from torchft_x.core.status import member_status, quorum_status
from torchft_x.core.takeover import Adopt, Takeover, inherited
from torchft_x.core.tenure import Tenure
from torchft_x.core.types import JoinReason, Member, Quorum
from torchft_x.core.waits import Waits

__all__ = ["Lighthouse", "LighthouseConfig"]

# A member of the present quorum that is away is asked again this often whether it still accepts connections: only a
# refusal (or the end of its lease) lets a new lineage begin. Quicker repeats just after a stream broke, while a dying
# process closes its sockets one by one, are the shell's work.
_PROBE_AGAIN = 1.0
# A reason for waiting is worth a line in the log when somebody has waited this long.
_NOTE_WAIT_AFTER = 1.0


class Lighthouse:
    """See the module's first lines. One thread at a time; the shell holds the lock."""

    def __init__(self, config: LighthouseConfig, *, now: float, unix: float) -> None:
        """`now`: monotonic seconds, the clock of all later events. `unix`: the same instant in unix seconds."""
        self._config = config
        self._started_at = now
        self._unix = unix - now  # added to a monotonic time it dates it
        self._now = now  # of the latest event
        first_id = int(unix * 1000) << 10  # R1: above all earlier ids, unless the clock went back
        self._tenure = Tenure(first_id, config.place, config.legacy)
        self._takeover: Takeover | Gathering = Takeover(config, now)  # of what an earlier lighthouse has left (R8)
        self._roll = Roll(now)  # every member heard of
        self._alarm = Alarm(config, self._roll, self._tenure)  # what is said when one is gone
        self._others: Others | None = None  # what is heard of other lighthouses
        if self._tenure.coalition is not None:
            self._others = Others(config, self._tenure.coalition, self._roll, self._tenure, self._alarm)
            self._takeover = self._others.gathering
        self._grants = Grants(config, self._tenure)  # how far members may run without asking
        self._likeness = Likeness(self._roll, self._tenure)  # who may train with whom
        self._patience = Patience(config, self._roll, self._tenure, self._alarm)  # knows when asking `form` is no use
        self._pauses = Pauses(self._roll, self._tenure)  # silences that were announced
        self._noted = ""  # reason for waiting that was noted last
        self._waits = Waits()  # who was told what it waits for
        self._asked = (inf, -inf)  # no join that stands was made before the first or after the second
        self._said_as_of = -1  # the tenure's `changes` when all that wait had been told what for
        self._hellos = 0  # so far
        self._kept = (0, 0)  # quorum and grant that were kept last
        self._kin: tuple[Kin, ...] = ()  # kept with them; a new tuple only when something has changed in it
        self._kin_as_of = (0, 0)  # config id and hellos at that time
        self._inherited = 0  # id of the quorum that was found written down (R8c); 0: none, or it is known to be old
        self._unsaid: list[LighthouseEffect] = []  # effects of the beginning, handed out with those of the first event
        legacy = inherited(config)
        if legacy is not None:
            self._inherit(legacy)

    def __repr__(self) -> str:
        return f"<Lighthouse {self._tenure} {self.undecided}>"

    # --- what the shell may ask ----------------------------------------------------------------------------------

    @property
    def current(self) -> Quorum | None:
        """Newest quorum issued or adopted."""
        return self._tenure.current

    @property
    def undecided(self) -> str:
        """Why there is no next quorum yet, for people; '' if nobody has asked for one."""
        if self._tenure.asking:
            outcome = self._outcome(self._now)
            return outcome.reason if isinstance(outcome, Wait) else ""
        unheard = [f"{r.replica_id} ({r.lost})" for r in self._roll if r.join is not None]
        return f"Nobody who has asked is alive: {listed(unheard)}." if unheard else ""

    def next_attempt(self, group: str) -> int:
        """The number a supervisor of this group goes on from: above that of every life of it (R2)."""
        return self._roll.next_attempt(group)

    def status(self, now: float) -> dict[str, Any]:
        """What the lighthouse knows, as JSON-able values. Ages in seconds."""
        inside = self._tenure.inside
        return {
            "quorum": quorum_status(self._tenure, self._unix + now),
            "undecided": self.undecided,
            "asking": sorted(self._tenure.asking),
            "missing": sorted(self._tenure.missing),
            "members": [
                member_status(r, inside=r.replica_id in inside, over=self._alarm.is_over(r, now), now=now)
                for r in self._roll
            ],
            "announced": sorted(self._tenure.presence.announced),
            "fresh": self._takeover.is_open,
            "uptime": now - self._started_at,
            "min_replicas": self._config.min_replicas,
        }

    # --- events --------------------------------------------------------------------------------------------------

    def handle(self, event: LighthouseEvent, now: float) -> list[LighthouseEffect]:
        """Take an event, return what the shell must do, in order. `now`: monotonic seconds."""
        self._now = now
        effects = self._take(event, now)
        effects += self._maybe_form(now)
        if self._unsaid:
            effects, self._unsaid = self._unsaid + effects, []
        return self._keep() + effects if self._config.keeps else effects

    def _keep(self) -> list[LighthouseEffect]:
        """What the next lighthouse here must know, when it is more than was kept. Comes before what it speaks of."""
        cur, granted = self.current, self._tenure.granted_through
        if cur is None or (cur.id, granted) == self._kept:
            return []
        if cur.id != self._kept[0] and (cur.config_id, self._hellos) != self._kin_as_of:
            self._kin_as_of = (cur.config_id, self._hellos)
            records = self._roll.of(cur.members)
            self._kin = tuple(Kin(r.replica_id, r.life, r.boot_id, r.runs_on) for r in records if not r.unary)
        self._kept = (cur.id, granted)
        return [Keep(Legacy(cur, granted, self._kin, self._tenure.chain.open))]

    def _take(self, event: LighthouseEvent, now: float) -> list[LighthouseEffect]:
        match event:
            case Hello():
                return self._on_hello(event, now)
            case Join():
                return self._on_join(event, now)
            case Progress():
                return self._on_progress(event, now)
            case Leave():
                return self._on_leave(event, now)
            case Heard(session) | Healed(session):  # a healer contributes from its next join on (R10)
                return self._on_heard(session, now)
            case Closed(session):
                return self._on_closed(session, now)
            case Probed(replica_id, refused):
                return self._on_probed(replica_id, refused)
            case Paused():
                return self._on_heard(event.session, now) + self._pauses.on_paused(event, now)
            case Suspected(session, suspects):
                known = self._roll.on(session) is not None
                return self._on_heard(session, now) + self._alarm.look_after(suspects if known else (), now)
            case LifeBegun(group, attempt, token):
                self._roll.begun(group, attempt)
                self._roll.guardians.begin(group, token)
                return []
            case LifeEnded(token, code, word):
                spoken = self._others.take_last_word(word, now) if self._others is not None and word is not None else []
                return self._on_life_ended(token, code) + spoken
            case GroupAnnounced(group, present):
                self._tenure.presence.announce(group, present)
                return []
            case GuardianHere() | GuardianHeard() | GuardianGone():
                self._roll.guardians.take(event, now)
                return []
            case LifeHalted():
                return self._on_halted(event, now)
            case UnaryJoin(call, member):
                return self._on_unary_join(call, member, now)
            case UnaryGone(call):
                return self._on_unary_gone(call)
            case Heartbeat(replica_id):
                return self._on_heartbeat(replica_id, now)
            case Tick():
                return self._on_tick(now)

    # --- sessions ------------------------------------------------------------------------------------------------

    def _on_hello(self, hello: Hello, now: float) -> list[LighthouseEffect]:
        if self._roll.has_ended(hello.life):
            text = f"{hello.replica_id} can't join: its supervisor has reported that this process ended."
            return [Refuse(text, session=hello.session)]
        newer = self._roll.superseded_by(hello)
        if newer:
            return [Fence(hello.session, newer)]
        effects = self._fence(self._roll.supersede(hello), hello.replica_id)
        known = self._roll.get(hello.replica_id)
        if known is not None and known.session is not None:
            # Which of the two streams is the living one only the member knows: hellos may come late (R3).
            effects.append(HangUp(known.session))
        record = self._roll.open(hello, now)
        self._hellos += 1
        self._tenure.recount(record)
        self._tenure.raise_ids(hello.state.committed_in)
        effects += self._others.greet(hello, now) if self._others is not None else []
        effects.append(Note("hello", f"{hello.replica_id} is here, at {hello.state}.", hello.replica_id))
        if hello.quorum is not None:
            self._tenure.raise_ids(hello.quorum.id)
            self._tenure.received(record, hello.quorum.id)
            self._notice_newer(hello.quorum, now)
        self._takeover.hear(hello)
        grown = self._grants.on_hello(hello)
        effects += self._catch_up(record)
        return effects + (self._grants.release(self._roll, now) if grown else [])

    def _notice_newer(self, quorum: Quorum, now: float) -> None:
        """The lighthouse before us has issued a newer quorum than it wrote down: we know nothing, as after a start."""
        cur = self.current
        if cur is not None and cur.id == self._inherited and quorum.id > cur.id:
            self._inherited = 0
            self._tenure.forget()
            self._takeover = Takeover(self._config, now)
            for record in self._roll:
                self._tenure.recount(record)

    def _fence(self, older: Record | None, by: str) -> list[LighthouseEffect]:
        """R2. The older life is told to stop and is not waited for, but that it is over is yet to be proven."""
        if older is None:
            return []
        effects: list[LighthouseEffect] = []
        if older.session is not None:
            effects.append(Fence(older.session, by))
            self._roll.close(older)
        return effects + self._alarm.lose(older, f"{by}, a newer life of its group, is here")

    def _catch_up(self, record: Record) -> list[LighthouseEffect]:
        """A member has come back on a new session: does it still run what the others run?"""
        tenure = self._tenure
        if tenure.current is None:
            self._roll.find(record)
            tenure.recount(record)
            return []
        if tenure.holds_current(record):
            return self._alarm.tell(record, tenure.broken) if record.lost or tenure.broken else []
        effects: list[LighthouseEffect] = []
        inside = record.replica_id in tenure.inside
        if inside and not record.lost:
            # The quorum was sent, but the session broke first: the others wait for it in vain.
            effects += self._alarm.end_quorum((), f"{record.replica_id} never received the quorum.", spare=record)
        if record.quorum_id:
            effects += self._alarm.tell(record, f"quorum {tenure.current.id} has been formed since.")
        elif not inside:
            self._roll.find(record)
            self._tenure.recount(record)
        return effects

    def _on_join(self, join: Join, now: float) -> list[LighthouseEffect]:
        record = self._roll.on(join.session)
        if record is None:
            return []  # R3: of a session that was replaced
        member = join.member
        if member.replica_id != record.replica_id:
            text = f"{record.replica_id} has sent a join for {member.replica_id}; a session speaks for one member."
            return self._alarm.refuse(record, text)
        record.hear(now)
        self._tenure.received(record, record.quorum_id)  # an answer to what it asked before
        record.address = member.address or record.address
        changed = self._likeness.declare(record, join.traits) if join.traits is not None else ""
        if changed:
            return self._alarm.refuse(record, changed)
        extended = self._grants.on_boundary(record, join, now)
        if extended:
            return extended
        record.note_step(member.state.step, join.step_seconds, now)
        effects: list[LighthouseEffect] = []
        if record.replica_id not in self._tenure.inside and record.join is None:
            effects.append(Note("joined", f"{record.replica_id} asks to join at {member.state}.", record.replica_id))
        self._ask(record, Candidate(member, join.reason, now), join.number)
        if join.suspects:
            effects += self._alarm.look_after(join.suspects, now)
        effects += self._after_ask(record)
        effects += self._pauses.tell(record, now)
        known = not (self._takeover.is_open and self._takeover.lasts(now))  # who is here already, so who counts
        if known and (join.traits is not None or record.replica_id not in self._tenure.inside):
            effects += self._refuse_misfits()
        return effects

    def _on_progress(self, progress: Progress, now: float) -> list[LighthouseEffect]:
        record = self._roll.on(progress.session)
        if record is None:
            return []
        record.note_step(progress.step, progress.step_seconds, now)
        self._tenure.received(record, progress.quorum_id)
        return self._on_heard(progress.session, now) + self._grants.on_progress(record, progress, now)

    def _ask(self, record: Record, candidate: Candidate, number: int = 0) -> None:
        """Whoever asks is alive and waited for, whatever was thought of it before."""
        if record.lost:
            self._roll.find(record)
        record.proof = ""
        record.told = False
        record.join, record.number = candidate, number
        self._asked = min(self._asked[0], candidate.since), self._now
        self._tenure.raise_ids(candidate.member.state.committed_in)
        self._tenure.recount(record)

    def _after_ask(self, record: Record) -> list[LighthouseEffect]:
        """R5: a member that asks because something went wrong takes the others out of the quorum, too; and so does one
        that stands still where the others were granted more, and wait for it in a collective."""
        effects: list[LighthouseEffect] = []
        if record.join is None or not self._tenure.holds_current(record) or self._tenure.broken:
            return effects
        wrong = record.join.reason in (JoinReason.FAILED, JoinReason.REJOINED)
        if wrong or self._tenure.stops_short(record.join.member):
            effects += self._alarm.end_quorum((), f"a step of {record.replica_id} failed.", spare=record)
        return effects

    def _refuse_misfits(self) -> list[LighthouseEffect]:
        misfits = self._likeness.misfits()
        return [effect for record, sentence in misfits for effect in self._alarm.refuse(record, sentence)]

    def _refuse_stranded(self, decision: Form) -> list[LighthouseEffect]:
        """Whoever can't heal within its library would cost every quorum it is in a step."""
        effects: list[LighthouseEffect] = []
        for member, sentence in stranded(decision.members):
            record = self._roll.get(member.replica_id)
            effects += self._alarm.refuse(record, sentence) if record is not None else []
        return effects

    def _on_leave(self, leave: Leave, now: float) -> list[LighthouseEffect]:
        record = self._roll.on(leave.session)
        if record is None:
            return []
        record.hear(now)
        if self._others is not None:
            self._others.part(record)
        # At a boundary after a commit in the quorum nobody waits for it in a collective; otherwise somebody may.
        clean = not self._tenure.holds_current(record) or record.join is not None
        at_end = self.current is not None and leave.state.committed_in == self.current.id
        clean = clean or (at_end and leave.state.step >= self._tenure.granted_through)
        self._roll.close(record)  # whatever else its stream still carries has no meaning
        text = f"{record.replica_id} leaves at {leave.state}."
        effects: list[LighthouseEffect] = [Note("leave", text, record.replica_id)]
        return effects + self._alarm.lose(record, "it has left", proof="it has left", quietly=clean)

    def _on_heard(self, session: int, now: float) -> list[LighthouseEffect]:
        record = self._roll.on(session)
        if record is None:
            return []
        record.hear(now)
        if not record.lost:
            return []
        record.proof = ""  # it speaks, so a refused connect was about something else
        if record.join is None and record.quorum_id and self.current is not None:
            return self._alarm.tell(record, record.lost)
        self._find_again(record)
        return []

    def _find_again(self, record: Record) -> None:
        """It was silent or stopped, but stands where it stood: still waiting, or never in a quorum."""
        since = self._now - self._config.silence.host
        if self._roll.guardians.halt_of(record.life.token, since) is None:
            self._roll.find(record)
            self._tenure.recount(record)

    def _on_halted(self, event: LifeHalted, now: float) -> list[LighthouseEffect]:
        """Whether it is lost is judged at the next tick; a process that goes on is heard of, or asks, by itself."""
        halt = Halt(now - event.seconds, event.who) if event.who else None
        self._roll.guardians.halt(event.stream, event.life_token, halt)
        for record in self._roll.of_life(event.life_token):
            if halt is None and record.lost and not record.proof and record.session is not None and record.join:
                self._find_again(record)
        return []

    def _on_closed(self, session: int, now: float) -> list[LighthouseEffect]:
        record = self._roll.on(session)
        if record is None:
            return []
        self._roll.close(record)
        self._takeover.forget(record.replica_id)
        self._tenure.recount(record)
        return self._alarm.probe(record, now)

    # --- the peer's clients --------------------------------------------------------------------------------------

    def _on_unary_join(self, call: int, member: Member, now: float) -> list[LighthouseEffect]:
        if self._others is not None:
            return self._others.refuse_client(member.replica_id, call)
        record = self._roll.ensure(member.replica_id, now, unary=True)
        if not record.unary:
            text = f"{member.replica_id} already speaks on a session of its own; replica ids must differ."
            return [Refuse(text, call=call)]
        record.hear(now)
        record.address = member.address
        self._tenure.received(record, record.quorum_id)  # it can't say, and is believed
        self._roll.call(record, call)
        since = record.join.since if record.join else now
        reason = JoinReason.FAILED if member.commit_failures > 0 else JoinReason.BOUNDARY
        self._ask(record, Candidate(self._tenure.with_committed_in(member), reason, since))
        return self._after_ask(record)

    def _on_unary_gone(self, call: int) -> list[LighthouseEffect]:
        record = self._roll.hang_up(call)
        if record is not None:
            if not record.calls:
                record.join = None
            self._tenure.recount(record)
        return []

    def _on_heartbeat(self, replica_id: str, now: float) -> list[LighthouseEffect]:
        record = self._roll.ensure(replica_id, now, unary=True)
        record.hear(now)
        if record.unary:
            self._roll.find(record)  # the peer's rule: whoever beats is waited for
            self._tenure.recount(record)
        return []

    # --- who is gone ---------------------------------------------------------------------------------------------

    def _on_probed(self, replica_id: str, refused: bool) -> list[LighthouseEffect]:
        record = self._roll.get(replica_id)
        return self._alarm.on_probed(record, refused) if record is not None else []

    def _on_life_ended(self, token: str, code: int) -> list[LighthouseEffect]:
        effects: list[LighthouseEffect] = []
        for record in self._roll.end(token):
            self._roll.close(record)
            reason = f"its process ended with exit code {code}"
            effects += self._alarm.lose(record, reason, proof=reason)
        return effects

    def _on_tick(self, now: float) -> list[LighthouseEffect]:
        c = self._config
        effects: list[LighthouseEffect] = []
        forgiven = self._roll.forgive(now, c.tick)
        if forgiven > c.silence.shortest:
            effects.append(Note("starved", f"The lighthouse was not scheduled for {forgiven:.1f} s; nobody is blamed."))
        for record, reason in self._roll.gone(now, c.silence):
            effects += self._alarm.lose(record, reason)
        effects += self._alarm.note_suspects(now)
        for record in self._roll.away(self._tenure.ran):
            if record.probed_at is None or now - record.probed_at >= _PROBE_AGAIN:
                effects += self._alarm.probe(record, now)
        self._roll.prune(self._tenure.ran)
        return effects + self._note_wait(now)

    # --- forming -------------------------------------------------------------------------------------------------

    def _maybe_form(self, now: float) -> list[LighthouseEffect]:
        effects: list[LighthouseEffect] = []
        if self._takeover.is_open:
            if self._takeover.lasts(now):
                return effects
            outcome = self._takeover.decide(now)
            if isinstance(outcome, Adopt):
                effects += self._adopt(outcome)
        if self._patience.lasts(now):
            return effects  # the common case, in constant time; `form` would say the same
        decision = self._outcome(now)
        if isinstance(decision, Form):
            refusals = self._refuse_misfits()  # one may have been away when the other asked
            refusals += self._refuse_stranded(decision)
            effects += refusals
            decision = self._outcome(now) if refusals else decision
        if isinstance(decision, Form):
            return effects + self._issue(decision, now)
        self._patience.begin(decision, now)
        return effects

    def _outcome(self, now: float) -> Form | Wait:
        if self._takeover.is_open:
            outcome = self._takeover.decide(now)
            if isinstance(outcome, Wait):
                return outcome
        cur, missing = self._tenure.current, self._tenure.missing
        if cur is not None and missing:  # `form` would say the same, after a look at all candidates
            return wait_for(cur, sorted(missing))
        away = self._tenure.ran - self._tenure.asking  # whoever asks will not commit in the present quorum
        outside = [r for r in map(self._roll.get, away) if r is not None]
        over = frozenset(r.replica_id for r in outside if self._alarm.is_over(r, now))
        proven = frozenset(r.replica_id for r in outside if r.proof) | self._tenure.ended(away)
        c = self._config
        return form(
            self._tenure.situation(
                self._roll, over, proven, now=now, min_replicas=c.min_replicas,
                join_timeout=c.join_timeout,
            )
        )  # fmt: skip

    def _inherit(self, legacy: Legacy) -> None:
        """R8(c): go on where the lighthouse before us stopped, as if all sessions had broken in this moment."""
        quorum, now = legacy.quorum, self._started_at
        for kin in legacy.kin:
            self._roll.restore(kin, now)
        self._end_takeover()
        self._tenure.adopt(quorum, legacy.open, self._roll, started_at=now, granted_through=legacy.granted_through)
        self._inherited = quorum.id
        text = f"Quorum {quorum.id} of {listed([m.replica_id for m in quorum.members])} at {quorum.top} is taken over."
        self._unsaid.append(Note("adopted", text, quorum_id=quorum.id))

    def _adopt(self, adopt: Adopt) -> list[LighthouseEffect]:
        """R8: go on where the lighthouse before us stopped. Who holds another quorum, or lost a member, must ask."""
        quorum = adopt.quorum
        granted = self._takeover.granted_through(quorum)
        self._end_takeover()
        began = self._started_at if self._config.place is None else self._now
        self._tenure.adopt(quorum, adopt.older, self._roll, started_at=began, granted_through=granted)
        text = f"Adopted quorum {quorum.id} of {listed([m.replica_id for m in quorum.members])} at {quorum.top}."
        effects: list[LighthouseEffect] = [Note("adopted", text, quorum_id=quorum.id)]
        for record in self._roll:
            inside = record.replica_id in self._tenure.inside
            if inside and record.lost:
                text = f"{record.replica_id} is lost: {record.lost}."
                effects += self._alarm.end_quorum((record.replica_id,), text, spare=record)
            elif inside and record.session is not None and record.quorum_id != quorum.id and not self._tenure.broken:
                text = f"{record.replica_id} never received it: the lighthouse before this one died while sending it."
                effects += self._alarm.end_quorum((), text, spare=record)
            if record.quorum_id not in (0, quorum.id):
                effects += self._alarm.tell(record, f"quorum {quorum.id} has been formed since.")
        return effects + self._grants.release(self._roll, self._now)

    def _issue(self, decision: Form, now: float) -> list[LighthouseEffect]:
        effects: list[LighthouseEffect] = []
        if decision.left is not None:
            text = (
                f"A new lineage begins: no member carries on q{decision.left.number} at {decision.left.top}, and all "
                "that could are over. Training goes on from the newest state among the members."
            )
            effects.append(Note("new_lineage", text, quorum_id=self._tenure.next_id))
        records = self._roll.of(decision.members)
        sessions = tuple(r.session for r in records if r.session is not None)
        calls = tuple(call for r in records for call in r.calls)
        quorum = self._tenure.issue(decision, self._roll, now=now, unix=self._unix + now, lease=self._config.lease)
        self._tenure.chain.close(lambda r: (x := self._roll.get(r)) is None or self._alarm.is_over(x, now))
        self._end_takeover()
        if decision.rebuild:
            text = f"Detected quorum change, bumping quorum_id to {quorum.id}"
            effects.append(Note("quorum_change", text, quorum_id=quorum.id))
        names = listed([m.replica_id for m in quorum.members])
        text = f"Quorum! q{quorum.number} (id {quorum.id}) at {quorum.top}: {len(quorum.members)} members, {names}"
        effects.append(Note("quorum", text, quorum_id=quorum.id))
        effects.append(Issue(quorum, sessions, calls))
        return effects

    def _end_takeover(self) -> None:
        self._takeover.end()
        self._noted = ""

    def _note_wait(self, now: float) -> list[LighthouseEffect]:
        """A line for the log, and a word to whoever has waited for a moment, when the reason is a new one."""
        first, last = self._asked
        changes = self._tenure.changes
        if now - first < _NOTE_WAIT_AFTER or (self._tenure.missing and changes == self._said_as_of):
            return []  # the common cases, in constant time
        waiting = [r for r in self._roll if r.join is not None and now - r.join.since >= _NOTE_WAIT_AFTER]
        if not waiting:
            self._asked = min((r.join.since for r in self._roll if r.join is not None), default=inf), last
            return []
        outcome = self._outcome(now) if self._tenure.asking else None
        effects: list[LighthouseEffect] = []
        reason = outcome.reason if isinstance(outcome, Wait) else self.undecided
        if reason and reason != self._noted:
            self._noted = reason
            effects.append(Note("undecided", reason))
        if isinstance(outcome, Wait):
            effects += self._waits.tell([r.session for r in waiting if r.session is not None], outcome, now)
            settled = self._waits.settled and now - last >= _NOTE_WAIT_AFTER
            self._said_as_of = changes if settled else -1
        return effects
