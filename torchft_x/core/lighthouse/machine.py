"""The machine that decides membership: events in, effects out. Its contract with the shell is in `core.messages`.

Events change its parts here. The parts hold the rules:

* `core.quorum`, `core.lighthouse.recover`: whether a quorum may form (pure).
* `core.membership.members`: who is here or lost. `core.membership.record`: what that means.
* `core.membership.current_quorum`: the present quorum. `core.lighthouse.next_quorum`: what follows it.
* `core.admission.compatibility`: who may train with whom.
* `core.lighthouse.waiting`: who is not waited for any more, and what is said then.
"""

from __future__ import annotations

from typing import Any

from torchft_x.core.admission.claims import impossible
from torchft_x.core.admission.compatibility import PEER, CompatibilityCheck
from torchft_x.core.admission.finished_job import FinishedJob
from torchft_x.core.decision_log import DecisionLog
from torchft_x.core.lighthouse.grants import Grants
from torchft_x.core.lighthouse.journal_writer import JournalWriter
from torchft_x.core.lighthouse.next_quorum import QuorumTransition
from torchft_x.core.lighthouse.status import View, decided, view
from torchft_x.core.lighthouse.waiting import REFUSED, Waiting
from torchft_x.core.membership.config import LighthouseConfig
from torchft_x.core.membership.current_quorum import QuorumState
from torchft_x.core.membership.failure_detector import SilenceLimits, StoppedProcess
from torchft_x.core.membership.members import MemberTable
from torchft_x.core.membership.record import LEFT, MemberRecord
from torchft_x.core.messages import Note, Tick
from torchft_x.core.messages.job import AttemptExited, AttemptStarted, GroupRests, SupervisorGone, SupervisorHere
from torchft_x.core.messages.lighthouse import (
    AttemptHalted,
    Closed,
    CloseSession,
    CopyHeld,
    Fence,
    Heartbeat,
    Hello,
    Join,
    Leave,
    LighthouseEffect,
    LighthouseEvent,
    Paused,
    Probed,
    Progress,
    Refuse,
    SignOfLife,
    SupervisorHeard,
    Suspected,
    UnaryGone,
    UnaryJoin,
)
from torchft_x.core.quorum import Candidate
from torchft_x.core.types import BEFORE_END, JoinReason, Member, Quorum, group_number, group_of
from torchft_x.timing import TIMING

__all__ = ["Lighthouse", "LighthouseConfig", "SilenceLimits"]


class Lighthouse:
    """Membership of one job. Takes events, and returns effects. One thread at a time; the shell holds the lock."""

    def __init__(self, config: LighthouseConfig, *, now: float, unix: float) -> None:
        """Start at `now`: monotonic seconds, the clock of all later events. `unix`: that instant in unix seconds."""
        self._config = config
        self._started_at = now
        self._unix = unix - now  # offset from monotonic to unix seconds
        self._now = now  # time of the latest event
        self._decision_log = DecisionLog()  # newest decisions
        first_id = int(unix * 1000) << 10  # R1: above all earlier ids, unless the clock went back
        self._members = MemberTable(now)  # every known member
        self._quorum_state = QuorumState(first_id, self._members)
        self._waiting = Waiting(config, self._members, self._quorum_state)  # which members are waited for
        self._grants = Grants(config, self._quorum_state)  # how far members may run without asking
        self._compatibility = CompatibilityCheck(self._members, self._quorum_state)  # which members may train together
        self._finished_job = FinishedJob(
            self._members, lease=config.lease + config.lease_margin, previous=config.previous, now=now
        )
        self._next_quorum = QuorumTransition(  # what follows the present quorum
            config,
            self._members,
            self._quorum_state,
            self._waiting,
            self._grants,
            self._compatibility,
            self._finished_job,
            now=now,
            unix=unix,
        )
        # What the job's next lighthouse must know.
        self._journal_writer = JournalWriter(self._members, self._quorum_state, self._finished_job)
        # Effects of the start, returned with those of the first event.
        self._first_effects = self._next_quorum.inherit(config.previous) if config.previous is not None else []
        if config.previous is not None:
            self._finished_job.trains(entry.replica_id for entry in config.previous.members)
            self._finished_job.trains(m.replica_id for m in config.previous.quorum.members)

    def __repr__(self) -> str:
        return f"<Lighthouse {self._quorum_state} {self.undecided}>"

    # --- what the shell may ask ----------------------------------------------------------------------------------

    @property
    def current(self) -> Quorum | None:
        """Newest quorum issued or adopted."""
        return self._quorum_state.current

    @property
    def undecided(self) -> str:
        """Reason for people why there is no next quorum yet; '' if nobody has asked for one."""
        return self._next_quorum.undecided(self._now)

    @property
    def reached(self) -> int:
        """Newest step that a member of the present quorum has reported; 0: there is no quorum."""
        return self._quorum_state.reached if self.current is not None else 0

    def addresses_of(self, group: str) -> list[str]:
        """Return the addresses of the group servers of a group's living members. `group`: its id, or its number."""
        ours = [r for r in self._members if group in (group_of(r.replica_id), str(group_number(r.replica_id)))]
        return [r.address for r in ours if r.address and not r.lost]

    def others_train(self, replica_id: str) -> bool:
        """Return whether this member, whose hello was accepted, is a newcomer that nobody waits for until it asks."""
        return self._quorum_state.goes_on_without(replica_id, self._config.min_replicas)

    def next_attempt(self, group: str) -> int:
        """Return the number from which a supervisor of this group goes on: above that of every attempt of it (R2)."""
        return self._members.next_attempt(group)

    def story(self, now: float) -> list[str]:
        """Return the newest decisions, the oldest first: how long ago, because of what, and what was decided."""
        return self._decision_log.story(now)

    def view(self, now: float) -> View:
        """Return what is shown to people, as values."""
        return view(
            self._members, self._quorum_state, self._config, now=now, unix=self._unix + now, undecided=self.undecided
        )

    def status(self, now: float) -> dict[str, Any]:
        """Return what the doctor and Slurm's watcher decide by, as JSON-able values. Ages are in seconds.

        People are shown `view`, through an overview that may be some seconds old.
        """
        return {
            "undecided": self.undecided,
            "members": [r.replica_id for r in self._members],
            "supervisors": self._members.supervisors.status(now),
            "uptime": now - self._started_at,
        }

    # --- events --------------------------------------------------------------------------------------------------

    def handle(self, event: LighthouseEvent, now: float) -> list[LighthouseEffect]:
        """Take an event, and return what the shell must do, in order. `now`: monotonic seconds."""
        self._now = self._decision_log.now = now
        self._decision_log.event = event
        effects = self._take(event, now)
        effects += self._next_quorum.maybe_form(now, tick=isinstance(event, Tick))
        if self._first_effects:
            effects, self._first_effects = self._first_effects + effects, []
        for sentence in filter(None, map(decided, effects)):
            self._decision_log.note(sentence)
        return self._journal_writer.poll() + effects if self._config.keeps else effects

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
            case SignOfLife(session):
                return self._on_heard(session, now)
            case Closed(session):
                return self._on_closed(session, now)
            case Probed():
                return self._on_probed(event, now)
            case Paused():
                record = self._members.on(event.session)
                paused = self._waiting.pause(record, event, now) if record is not None else []
                return self._on_heard(event.session, now) + paused
            case Suspected(session, suspects):
                known = self._members.on(session) is not None
                return self._on_heard(session, now) + self._waiting.probe_suspects(suspects if known else (), now)
            case AttemptStarted(group, attempt, token, stream):
                self._members.begun(group, attempt)
                self._members.supervisors.begin(group, attempt, token, stream)
                return []
            case AttemptExited(attempt_token=token, code=code):
                return self._on_attempt_ended(token, code, now)
            case SupervisorHere():
                self._members.supervisors.arrive(event, now)
                self._quorum_state.changed = True  # the first quorum waits for its group
                return []
            case SupervisorHeard(stream):
                self._members.supervisors.receive(stream, now)
                return []
            case SupervisorGone():
                self._members.supervisors.leave(event, now)
                self._quorum_state.changed = True
                return []
            case GroupRests(group, rests):
                self._members.supervisors.rest(group, rests)
                self._quorum_state.changed = True
                return []
            case CopyHeld(stream, state):
                self._members.supervisors.hold(stream, state)
                self._quorum_state.changed = True
                return []
            case AttemptHalted():
                return self._on_halted(event, now)
            case UnaryJoin(call, member):
                return self._on_unary_join(call, member, now)
            case UnaryGone(call):
                self._members.hang_up(call)
                return []
            case Heartbeat(replica_id):
                return self._on_heartbeat(replica_id, now)
            case Tick():
                return self._on_tick(now)

    # --- sessions ------------------------------------------------------------------------------------------------

    def _on_hello(self, hello: Hello, now: float) -> list[LighthouseEffect]:
        if self._members.has_ended(hello.attempt_id):
            text = f"{hello.replica_id} can't join: its supervisor has reported that this process ended."
            return [Refuse(text, session=hello.session)]
        text = impossible(hello, self._unix + now)
        if text:
            return [Refuse(text, session=hello.session)]
        newer = self._members.superseded_by(hello)
        if newer:
            return [Fence(newer, hello.session)]
        effects = self._fence(self._members.supersede(hello), hello.replica_id)
        known = self._members.get(hello.replica_id)
        if known is not None and known.session is not None:
            # Only the member knows which of the two streams is alive, because hellos may come late (R3).
            effects.append(CloseSession(known.session))
        record = self._members.open(hello, now)
        self._journal_writer.on_hello(record)
        self._quorum_state.raise_ids(hello.state.committed_in)
        effects.append(Note("hello", f"{hello.replica_id} is here, at {hello.state}.", hello.replica_id))
        if hello.quorum is not None:
            self._quorum_state.raise_ids(hello.quorum.id)
            self._quorum_state.chain.received(record.replica_id, hello.quorum.id)
            self._quorum_state.committed(hello.state.committed_in)
            self._next_quorum.notice_newer(hello.replica_id, hello.quorum, now)
        self._next_quorum.takeover.receive(hello)
        grown = self._grants.on_hello(hello)
        effects += self._catch_up(record)
        return effects + (self._grants.release(self._members, now) if grown else [])

    def _fence(self, older: MemberRecord | None, by: str) -> list[LighthouseEffect]:
        """Tell the older attempt to stop, and wait for it no longer (R2). It is not yet proven to be over."""
        if older is None:
            return []
        effects: list[LighthouseEffect] = []
        if older.session is not None:
            effects.append(Fence(by, older.session))
            self._members.close(older)
        return effects + self._waiting.lose(older, f"{by}, a newer attempt of its group, is here", "superseded")

    def _catch_up(self, record: MemberRecord) -> list[LighthouseEffect]:
        """Tell a member that has come back on a new session to ask, unless it runs what the others run."""
        quorum_state = self._quorum_state
        if quorum_state.current is None:
            self._members.find(record)
            return []
        if quorum_state.holds_current(record):
            return self._waiting.notify(record, quorum_state.broken) if record.lost or quorum_state.broken else []
        effects: list[LighthouseEffect] = []
        inside = record.replica_id in quorum_state.inside
        if inside and not record.lost:
            # The session broke before the member received the quorum, so the others wait for it in vain.
            effects += self._waiting.end_quorum((), f"{record.replica_id} never received the quorum.", spare=record)
        if record.quorum_id:
            effects += self._waiting.notify(record, f"quorum {quorum_state.current.id} has been formed since.")
        elif not inside:
            self._members.find(record)
        return effects

    def _on_join(self, join: Join, now: float) -> list[LighthouseEffect]:
        record = self._members.on(join.session)
        if record is None:
            return []  # R3: that session was replaced
        member = join.member
        if member.replica_id != record.replica_id:
            text = f"{record.replica_id} has sent a join for {member.replica_id}; a session speaks for one member."
            return self._waiting.refuse(record, text)
        text = impossible(member, self._unix + now)
        if text:
            return self._waiting.refuse(record, text)
        record.receive(now)
        self._quorum_state.chain.received(record.replica_id, record.quorum_id)  # this quorum answered its previous join
        self._quorum_state.committed(member.state.committed_in)
        record.address = member.address or record.address
        changed = self._compatibility.declare(record, join.traits)
        if changed:
            return self._waiting.refuse(record, changed)
        extended = self._grants.on_boundary(record, join, now)
        if extended:
            return extended
        record.note_step(member.state.step, join.step_seconds, now)
        effects: list[LighthouseEffect] = []
        if record.replica_id not in self._quorum_state.inside and record.join is None:
            effects.append(Note("joined", f"{record.replica_id} asks to join at {member.state}.", record.replica_id))
        self._ask(record, Candidate(member, join.reason, now, join.patience, join.unreached), join.number)
        if join.suspects:
            effects += self._waiting.probe_suspects(join.suspects, now)
        effects += self._after_ask(record)
        if self._next_quorum.knows_all(now) and (
            join.traits is not None or record.replica_id not in self._quorum_state.inside
        ):
            effects += self._next_quorum.refuse_misfits()
        return effects

    def _on_progress(self, progress: Progress, now: float) -> list[LighthouseEffect]:
        record = self._members.on(progress.session)
        if record is None:
            return []
        record.note_step(progress.step, progress.step_seconds, now)
        self._quorum_state.chain.received(record.replica_id, progress.quorum_id)
        return self._on_heard(progress.session, now) + self._grants.on_progress(record, progress, now)

    def _ask(self, record: MemberRecord, candidate: Candidate, number: int = 0) -> None:
        """Record a join. A member that asks is alive and waited for, unless it is kept out as a straggler."""
        self._members.ask(record, candidate, number)
        if record.lost and not self._waiting.kept_out(record, self._now):
            self._members.find(record)
        self._quorum_state.raise_ids(candidate.member.state.committed_in)

    def _after_ask(self, record: MemberRecord) -> list[LighthouseEffect]:
        """End the quorum for the others if this member asks because something went wrong (R5).

        Do the same if it stops where the others were granted more: they wait for it in a collective.
        """
        effects: list[LighthouseEffect] = []
        if record.join is None or not self._quorum_state.holds_current(record) or self._quorum_state.broken:
            return effects
        wrong = record.join.reason in (JoinReason.FAILED, JoinReason.REJOINED)
        if wrong or self._quorum_state.stops_short(record.join.member):
            effects += self._waiting.end_quorum((), f"a step of {record.replica_id} failed.", spare=record)
        return effects

    def _on_leave(self, leave: Leave, now: float) -> list[LighthouseEffect]:
        record = self._members.on(leave.session)
        if record is None:
            return []
        record.receive(now)
        # Nobody waits for it in a collective at a boundary after a commit in the quorum; otherwise somebody may.
        clean = not self._quorum_state.holds_current(record) or record.join is not None
        at_end = self.current is not None and leave.state.committed_in == self.current.id
        if at_end:
            self._quorum_state.reached = max(self._quorum_state.reached, leave.state.step)
            clean = clean or leave.state.step >= self._quorum_state.granted_through
        self._members.close(record)  # ignore everything that its stream still carries
        self._finished_job.left(record, leave.state, early=leave.early, lingers=leave.lingers, now=now)
        text = f"{record.replica_id} leaves at {leave.state}."
        effects: list[LighthouseEffect] = [Note("leave", text, record.replica_id)]
        words = f"left {BEFORE_END}" if leave.early else "left"
        return effects + self._waiting.lose(record, LEFT, "left", proof=LEFT, quietly=clean, left=words)

    def _on_heard(self, session: int, now: float) -> list[LighthouseEffect]:
        record = self._members.on(session)
        if record is None:
            return []
        record.receive(now)
        if not record.lost:
            return []
        record.disprove()
        if record.late:  # a sign of life does not prove that it trains
            return self._waiting.notify(record, record.lost) if record.join is None and record.quorum_id else []
        if record.join is None and record.quorum_id and self.current is not None:
            return self._waiting.notify(record, record.lost)
        self._find_again(record)
        return []

    def _find_again(self, record: MemberRecord) -> None:
        """Wait for the member again, unless its process is still stopped.

        It was silent or stopped, but stands where it stood: still waiting, or never in a quorum.
        """
        since = self._now - self._config.silence.host
        if self._members.supervisors.stopped_of(record.attempt_id.token, since) is None:
            self._members.find(record)

    def _on_halted(self, event: AttemptHalted, now: float) -> list[LighthouseEffect]:
        """Record that a process of an attempt is stopped, or goes on. Wait again for a member whose join is still open.

        The next tick judges whether a stopped member is lost. Other members that go on are heard, or ask.
        """
        stopped = StoppedProcess(now - event.seconds, event.who) if event.who else None
        self._members.supervisors.set_stopped(event.stream, event.attempt_token, stopped)
        for record in self._members.of_attempt(event.attempt_token) if stopped is None else ():
            waits = record.session is not None and record.join is not None
            if waits and record.lost and not record.late and not record.proof:
                self._find_again(record)
        return []

    def _on_closed(self, session: int, now: float) -> list[LighthouseEffect]:
        record = self._members.on(session)
        if record is None:
            return []
        self._members.close(record)
        return self._waiting.probe(record, now)

    # --- torchft's clients ---------------------------------------------------------------------------------------

    def _on_unary_join(self, call: int, member: Member, now: float) -> list[LighthouseEffect]:
        text = impossible(member, self._unix + now)
        if text:
            return [Refuse(text, call=call)]
        record = self._members.ensure(member.replica_id, now, unary=True)
        if not record.unary:
            text = f"{member.replica_id} already speaks on a session of its own; replica ids must differ."
            return [Refuse(text, call=call)]
        record.receive(now)
        record.address = member.address
        self._quorum_state.chain.received(record.replica_id, record.quorum_id)  # it can't report that, so it is assumed
        self._members.call(record, call)
        since = record.join.since if record.join else now
        reason = JoinReason.FAILED if member.commit_failures > 0 else JoinReason.BOUNDARY
        self._ask(record, Candidate(self._quorum_state.with_committed_in(member), reason, since, TIMING.peer_patience))
        self._compatibility.declare(record, PEER)
        effects = self._after_ask(record)
        if self._next_quorum.knows_all(now) and record.join is not None:
            effects += self._next_quorum.refuse_misfits()
        return effects

    def _on_heartbeat(self, replica_id: str, now: float) -> list[LighthouseEffect]:
        record = self._members.ensure(replica_id, now, unary=True)
        record.receive(now)
        if record.unary and not record.late and record.lost != REFUSED:
            self._members.find(record)  # torchft's rule: a member that sends heartbeats is waited for
        return []

    # --- who is gone ---------------------------------------------------------------------------------------------

    @property
    def _watched(self) -> frozenset[str]:
        """Replica ids of the members whose end matters."""
        ran, unreported = self._quorum_state.ran, self._finished_job.unreported
        return ran | unreported if unreported else ran

    def _on_probed(self, event: Probed, now: float) -> list[LighthouseEffect]:
        self._finished_job.probed(event.replica_id, event.address, event.refused, now)
        record = self._members.get(event.replica_id)
        return self._waiting.on_probed(record, event.refused) if record is not None else []

    def _on_attempt_ended(self, token: str, code: int, now: float) -> list[LighthouseEffect]:
        effects: list[LighthouseEffect] = []
        records = self._members.end(token)
        self._finished_job.attempt_ended(token, code, [r for r in records if r.replica_id in self._watched], now)
        for record in records:
            self._members.close(record)
            reason = f"its process ended with exit code {code}"
            effects += self._waiting.lose(record, reason, "exited", proof=reason)
        return effects

    def _on_tick(self, now: float) -> list[LighthouseEffect]:
        c = self._config
        effects: list[LighthouseEffect] = []
        forgiven = self._members.forgive(now, c.tick)
        if forgiven > c.silence.shortest:
            effects.append(Note("starved", f"The lighthouse was not scheduled for {forgiven:.1f} s; nobody is blamed."))
        for record, reason in self._members.newly_lost(now, c.silence):
            effects += self._waiting.lose(record, reason, "silent")
        effects += self._waiting.poll(now, lambda names: self._next_quorum.goes_without(names, now))
        effects += self._waiting.note_suspects(now)
        for record in self._members.away(self._watched):
            if record.probed_at is None or now - record.probed_at >= TIMING.probe_again:
                effects += self._waiting.probe(record, now)
        self._members.prune(self._watched, now - c.silence.host)
        self._journal_writer.on_tick()
        return effects + self._finished_job.poll(now) + self._next_quorum.note_wait(now)
