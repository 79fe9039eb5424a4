"""The machine that decides membership: events in, effects out. Its contract with the shell is in `core.messages`.

Events change its parts here. The parts hold the rules:

* `core.quorum.rule`, `core.restart.recover`: whether a quorum may form (pure).
* `core.membership.members`: who is here, lost or over.
* `core.membership.current_quorum`: the present quorum. `core.lighthouse.next_quorum`: what follows it.
* `core.admission.compatibility`: who may train with whom.
* `core.lighthouse.loss`: what is said when a member is gone.
"""

from __future__ import annotations

from typing import Any

from torchft_x.core import decisions
from torchft_x.core.admission.claims import impossible
from torchft_x.core.admission.compatibility import PEER, CompatibilityCheck
from torchft_x.core.admission.finished_job import FinishedJob
from torchft_x.core.decisions import Decision
from torchft_x.core.lighthouse.grants import Grants
from torchft_x.core.lighthouse.journal_writer import JournalWriter
from torchft_x.core.lighthouse.loss import REFUSED, LossHandler
from torchft_x.core.lighthouse.next_quorum import QuorumTransition
from torchft_x.core.lighthouse.planned_pauses import PlannedPauses
from torchft_x.core.lighthouse.status import View, decided, member_status, quorum_status, view
from torchft_x.core.lighthouse.stragglers import Stragglers
from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.failure_detector import StoppedProcess
from torchft_x.core.membership.members import LEFT, MemberRecord, MemberTable
from torchft_x.core.messages.common import Note, Tick
from torchft_x.core.messages.job import GroupRests, SupervisorGone, SupervisorHere
from torchft_x.core.messages.lighthouse import (
    Closed,
    CloseSession,
    CopyHeld,
    Fence,
    Heard,
    Heartbeat,
    Hello,
    Join,
    Leave,
    LifeBegun,
    LifeEnded,
    LifeHalted,
    LighthouseEffect,
    LighthouseEvent,
    Paused,
    Probed,
    Progress,
    Refuse,
    SupervisorHeard,
    Suspected,
    UnaryGone,
    UnaryJoin,
)
from torchft_x.core.quorum.rule import Candidate
from torchft_x.core.types import BEFORE_END, JoinReason, Member, Quorum, group_number, group_of
from torchft_x.timing import TIMING

__all__ = ["Lighthouse", "LighthouseConfig"]


class Lighthouse:
    """Membership of one job. Takes events, and returns effects. One thread at a time; the shell holds the lock."""

    def __init__(self, config: LighthouseConfig, *, now: float, unix: float) -> None:
        """Start at `now`: monotonic seconds, the clock of all later events. `unix`: that instant in unix seconds."""
        self._config = config
        self._started_at = now
        self._unix = unix - now  # offset from monotonic to unix seconds
        self._now = now  # time of the latest event
        self._decisions: tuple[Decision, ...] = ()  # the newest decisions, for `story`
        first_id = int(unix * 1000) << 10  # R1: above all earlier ids, unless the clock went back
        self._tenure = QuorumState(first_id)
        self._roll = MemberTable(now)  # every known member
        self._alarm = LossHandler(config, self._roll, self._tenure)  # what is said when a member is gone
        self._grants = Grants(config, self._tenure)  # how far members may run without asking
        self._likeness = CompatibilityCheck(self._roll, self._tenure)  # which members may train together
        self._pauses = PlannedPauses(self._roll, self._tenure)  # announced silences
        self._stragglers = Stragglers(self._roll, self._tenure, self._alarm)  # leaves out members that do not ask
        self._endings = FinishedJob(self._roll, lease=config.lease + config.lease_margin, legacy=config.legacy, now=now)
        self._succession = QuorumTransition(  # what follows the present quorum
            config,
            self._roll,
            self._tenure,
            self._alarm,
            self._grants,
            self._likeness,
            self._endings,
            self._stragglers,
            now=now,
            unix=unix,
        )
        # What the next lighthouse at this place must know.
        self._keeping = JournalWriter(self._roll, self._tenure, self._endings)
        # Effects of the start, returned with those of the first event.
        self._unsaid = self._succession.inherit(config.legacy) if config.legacy is not None else []
        if config.legacy is not None:
            self._endings.trains(entry.replica_id for entry in config.legacy.kin)
            self._endings.trains(m.replica_id for m in config.legacy.quorum.members)

    def __repr__(self) -> str:
        return f"<Lighthouse {self._tenure} {self.undecided}>"

    # --- what the shell may ask ----------------------------------------------------------------------------------

    @property
    def current(self) -> Quorum | None:
        """Newest quorum issued or adopted."""
        return self._tenure.current

    @property
    def undecided(self) -> str:
        """Reason for people why there is no next quorum yet; '' if nobody has asked for one."""
        return self._succession.undecided(self._now)

    @property
    def reached(self) -> int:
        """Newest step that a member of the present quorum has reported; 0: there is no quorum."""
        return max(self._tenure.reached, self.current.top.step) if self.current is not None else 0

    def addresses_of(self, group: str) -> list[str]:
        """Return the addresses of the group servers of a group's living members. `group`: its id, or its number."""
        ours = [r for r in self._roll if group in (group_of(r.replica_id), str(group_number(r.replica_id)))]
        return [r.address for r in ours if r.address and not r.lost]

    def others_train(self, replica_id: str) -> bool:
        """Return whether this member, whose hello was accepted, is a newcomer that nobody waits for until it asks."""
        return self._tenure.goes_on_without(replica_id, self._config.min_replicas)

    def next_attempt(self, group: str) -> int:
        """Return the number from which a supervisor of this group goes on: above that of every life of it (R2)."""
        return self._roll.next_attempt(group)

    def story(self, now: float) -> list[str]:
        """Return the newest decisions, the oldest first: how long ago, because of what, and what was decided."""
        return decisions.story(self._decisions, now)

    def view(self, now: float) -> View:
        """Return what is shown to people, as values."""
        return view(self._roll, self._tenure, self._config, now=now, unix=self._unix + now, undecided=self.undecided)

    def status(self, now: float) -> dict[str, Any]:
        """Return what the lighthouse knows, as JSON-able values. Ages are in seconds."""
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
            "announced": sorted(self._roll.supervisors.groups),
            "supervisors": self._roll.supervisors.status(now),
            "fresh": self._succession.takeover.is_open,
            "uptime": now - self._started_at,
            "min_replicas": self._config.min_replicas,
            "story": self.story(now),
        }

    # --- events --------------------------------------------------------------------------------------------------

    def handle(self, event: LighthouseEvent, now: float) -> list[LighthouseEffect]:
        """Take an event, and return what the shell must do, in order. `now`: monotonic seconds."""
        self._now = now
        effects = self._take(event, now)
        effects += self._succession.maybe_form(now, tick=isinstance(event, Tick))
        if self._unsaid:
            effects, self._unsaid = self._unsaid + effects, []
        for sentence in filter(None, map(decided, effects)):
            self._decisions = decisions.after(self._decisions, now, event, sentence)
        return self._keeping.look() + effects if self._config.keeps else effects

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
            case Heard(session):
                return self._on_heard(session, now)
            case Closed(session):
                return self._on_closed(session, now)
            case Probed():
                return self._on_probed(event, now)
            case Paused():
                return self._on_heard(event.session, now) + self._pauses.on_paused(event, now)
            case Suspected(session, suspects):
                known = self._roll.on(session) is not None
                return self._on_heard(session, now) + self._alarm.look_after(suspects if known else (), now)
            case LifeBegun(group, attempt, token, stream):
                self._roll.begun(group, attempt)
                self._roll.supervisors.begin(group, attempt, token, stream)
                return []
            case LifeEnded(token, code):
                return self._on_life_ended(token, code, now)
            case SupervisorHere():
                self._roll.supervisors.arrive(event, now)
                self._tenure.changed = True  # the first quorum waits for its group
                return []
            case SupervisorHeard(stream):
                self._roll.supervisors.hear(stream, now)
                return []
            case SupervisorGone():
                self._roll.supervisors.leave(event, now)
                self._tenure.changed = True
                return []
            case GroupRests(group, rests):
                self._roll.supervisors.rest(group, rests)
                self._tenure.changed = True
                return []
            case CopyHeld(stream, state):
                self._roll.supervisors.hold(stream, state)
                self._tenure.changed = True
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
        text = impossible(hello, self._unix + now)
        if text:
            return [Refuse(text, session=hello.session)]
        newer = self._roll.superseded_by(hello)
        if newer:
            return [Fence(hello.session, newer)]
        effects = self._fence(self._roll.supersede(hello), hello.replica_id)
        known = self._roll.get(hello.replica_id)
        if known is not None and known.session is not None:
            # Only the member knows which of the two streams is alive, because hellos may come late (R3).
            effects.append(CloseSession(known.session))
        record = self._roll.open(hello, now)
        self._keeping.on_hello(record)
        self._tenure.recount(record)
        self._tenure.raise_ids(hello.state.committed_in)
        effects.append(Note("hello", f"{hello.replica_id} is here, at {hello.state}.", hello.replica_id))
        if hello.quorum is not None:
            self._tenure.raise_ids(hello.quorum.id)
            self._tenure.received(record, hello.quorum.id)
            self._tenure.committed(hello.state.committed_in)
            self._succession.notice_newer(hello.replica_id, hello.quorum, now)
        self._succession.takeover.hear(hello)
        grown = self._grants.on_hello(hello)
        effects += self._catch_up(record)
        return effects + (self._grants.release(self._roll, now) if grown else [])

    def _fence(self, older: MemberRecord | None, by: str) -> list[LighthouseEffect]:
        """Tell the older life to stop, and wait for it no longer (R2). It is not yet proven to be over."""
        if older is None:
            return []
        effects: list[LighthouseEffect] = []
        if older.session is not None:
            effects.append(Fence(older.session, by))
            self._roll.close(older)
        return effects + self._alarm.lose(older, f"{by}, a newer life of its group, is here", "superseded")

    def _catch_up(self, record: MemberRecord) -> list[LighthouseEffect]:
        """Tell a member that has come back on a new session to ask, unless it runs what the others run."""
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
            # The session broke before the member received the quorum, so the others wait for it in vain.
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
            return []  # R3: that session was replaced
        member = join.member
        if member.replica_id != record.replica_id:
            text = f"{record.replica_id} has sent a join for {member.replica_id}; a session speaks for one member."
            return self._alarm.refuse(record, text)
        text = impossible(member, self._unix + now)
        if text:
            return self._alarm.refuse(record, text)
        record.hear(now)
        self._tenure.received(record, record.quorum_id)  # this quorum answered its previous join
        self._tenure.committed(member.state.committed_in)
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
        self._ask(record, Candidate(member, join.reason, now, join.patience, join.unreached), join.number)
        if join.suspects:
            effects += self._alarm.look_after(join.suspects, now)
        effects += self._after_ask(record)
        effects += self._pauses.tell(record, now)
        effects += self._stragglers.tell(record, now)
        if self._succession.knows_all(now) and (
            join.traits is not None or record.replica_id not in self._tenure.inside
        ):
            effects += self._succession.refuse_misfits()
        return effects

    def _on_progress(self, progress: Progress, now: float) -> list[LighthouseEffect]:
        record = self._roll.on(progress.session)
        if record is None:
            return []
        record.note_step(progress.step, progress.step_seconds, now)
        self._tenure.received(record, progress.quorum_id)
        return self._on_heard(progress.session, now) + self._grants.on_progress(record, progress, now)

    def _ask(self, record: MemberRecord, candidate: Candidate, number: int = 0) -> None:
        """Record a join. A member that asks is alive and waited for, unless it is kept out as a straggler."""
        if record.lost and not self._stragglers.keeps_out(record, self._now):
            self._roll.find(record)
        record.proof = ""
        record.told = False
        record.join, record.number = candidate, number
        self._tenure.raise_ids(candidate.member.state.committed_in)
        self._tenure.recount(record)

    def _after_ask(self, record: MemberRecord) -> list[LighthouseEffect]:
        """End the quorum for the others if this member asks because something went wrong (R5).

        Do the same if it stops where the others were granted more: they wait for it in a collective.
        """
        effects: list[LighthouseEffect] = []
        if record.join is None or not self._tenure.holds_current(record) or self._tenure.broken:
            return effects
        wrong = record.join.reason in (JoinReason.FAILED, JoinReason.REJOINED)
        if wrong or self._tenure.stops_short(record.join.member):
            effects += self._alarm.end_quorum((), f"a step of {record.replica_id} failed.", spare=record)
        return effects

    def _on_leave(self, leave: Leave, now: float) -> list[LighthouseEffect]:
        record = self._roll.on(leave.session)
        if record is None:
            return []
        record.hear(now)
        # Nobody waits for it in a collective at a boundary after a commit in the quorum; otherwise somebody may.
        clean = not self._tenure.holds_current(record) or record.join is not None
        at_end = self.current is not None and leave.state.committed_in == self.current.id
        if at_end:
            self._tenure.reached = max(self._tenure.reached, leave.state.step)
            clean = clean or leave.state.step >= self._tenure.granted_through
        self._roll.close(record)  # ignore everything that its stream still carries
        self._endings.left(record, leave.state, early=leave.early, lingers=leave.lingers, now=now)
        text = f"{record.replica_id} leaves at {leave.state}."
        effects: list[LighthouseEffect] = [Note("leave", text, record.replica_id)]
        words = f"left {BEFORE_END}" if leave.early else "left"
        return effects + self._alarm.lose(record, LEFT, "left", proof=LEFT, quietly=clean, left=words)

    def _on_heard(self, session: int, now: float) -> list[LighthouseEffect]:
        record = self._roll.on(session)
        if record is None:
            return []
        record.hear(now)
        if not record.lost:
            return []
        record.proof = ""  # it speaks, so a refused connect proves nothing
        if record.late:  # a sign of life does not prove that it trains
            return self._alarm.tell(record, record.lost) if record.join is None and record.quorum_id else []
        if record.join is None and record.quorum_id and self.current is not None:
            return self._alarm.tell(record, record.lost)
        self._find_again(record)
        return []

    def _find_again(self, record: MemberRecord) -> None:
        """Wait for the member again, unless its process is still stopped.

        It was silent or stopped, but stands where it stood: still waiting, or never in a quorum.
        """
        since = self._now - self._config.silence.host
        if self._roll.supervisors.halt_of(record.life.token, since) is None:
            self._roll.find(record)
            self._tenure.recount(record)

    def _on_halted(self, event: LifeHalted, now: float) -> list[LighthouseEffect]:
        """Record that a process of a life is stopped, or goes on. Wait again for a member whose join is still open.

        The next tick judges whether a stopped member is lost. Other members that go on are heard, or ask.
        """
        halt = StoppedProcess(now - event.seconds, event.who) if event.who else None
        self._roll.supervisors.halt(event.stream, event.life_token, halt)
        for record in self._roll.of_life(event.life_token):
            if (
                halt is None
                and record.lost
                and not record.late
                and not record.proof
                and record.session is not None
                and record.join
            ):
                self._find_again(record)
        return []

    def _on_closed(self, session: int, now: float) -> list[LighthouseEffect]:
        record = self._roll.on(session)
        if record is None:
            return []
        self._roll.close(record)
        self._tenure.recount(record)
        return self._alarm.probe(record, now)

    # --- torchft's clients ---------------------------------------------------------------------------------------

    def _on_unary_join(self, call: int, member: Member, now: float) -> list[LighthouseEffect]:
        text = impossible(member, self._unix + now)
        if text:
            return [Refuse(text, call=call)]
        record = self._roll.ensure(member.replica_id, now, unary=True)
        if not record.unary:
            text = f"{member.replica_id} already speaks on a session of its own; replica ids must differ."
            return [Refuse(text, call=call)]
        record.hear(now)
        record.address = member.address
        self._tenure.received(record, record.quorum_id)  # it can't report that, so it is assumed
        self._roll.call(record, call)
        since = record.join.since if record.join else now
        reason = JoinReason.FAILED if member.commit_failures > 0 else JoinReason.BOUNDARY
        self._ask(record, Candidate(self._tenure.with_committed_in(member), reason, since, TIMING.peer_patience))
        self._likeness.declare(record, PEER)
        effects = self._after_ask(record)
        if self._succession.knows_all(now) and record.join is not None:
            effects += self._succession.refuse_misfits()
        return effects

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
        if record.unary and not record.late and record.lost != REFUSED:
            self._roll.find(record)  # torchft's rule: a member that sends heartbeats is waited for
            self._tenure.recount(record)
        return []

    # --- who is gone ---------------------------------------------------------------------------------------------

    @property
    def _watched(self) -> frozenset[str]:
        """Replica ids of the members whose end matters."""
        ran, unsettled = self._tenure.ran, self._endings.unsettled
        return ran | unsettled if unsettled else ran

    def _on_probed(self, event: Probed, now: float) -> list[LighthouseEffect]:
        self._endings.probed(event.replica_id, event.address, event.refused, now)
        record = self._roll.get(event.replica_id)
        return self._alarm.on_probed(record, event.refused) if record is not None else []

    def _on_life_ended(self, token: str, code: int, now: float) -> list[LighthouseEffect]:
        effects: list[LighthouseEffect] = []
        records = self._roll.end(token)
        self._endings.life_ended(token, code, [r for r in records if r.replica_id in self._watched], now)
        for record in records:
            self._roll.close(record)
            reason = f"its process ended with exit code {code}"
            effects += self._alarm.lose(record, reason, "exited", proof=reason)
        return effects

    def _on_tick(self, now: float) -> list[LighthouseEffect]:
        c = self._config
        effects: list[LighthouseEffect] = []
        forgiven = self._roll.forgive(now, c.tick)
        if forgiven > c.silence.shortest:
            effects.append(Note("starved", f"The lighthouse was not scheduled for {forgiven:.1f} s; nobody is blamed."))
        for record, reason in self._roll.gone(now, c.silence):
            effects += self._alarm.lose(record, reason, "silent")
        effects += self._stragglers.look(now, c.silence.host, lambda names: self._succession.goes_without(names, now))
        effects += self._alarm.note_suspects(now)
        for record in self._roll.away(self._watched):
            if record.probed_at is None or now - record.probed_at >= TIMING.probe_again:
                effects += self._alarm.probe(record, now)
        self._roll.prune(self._watched)
        self._keeping.on_tick()
        return effects + self._endings.look(now) + self._succession.note_wait(now)
