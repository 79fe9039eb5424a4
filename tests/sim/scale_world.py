"""A lighthouse with up to ten thousand members in virtual time. The lighthouse is the product's; the rest is lean.

All members of a quorum step together, so one object (`Run`) says how far they are; a member is touched only when it
says or hears something. Two queues: the *agenda*, a heap of rare things (ticks, faults, the end of a step), and the
*lane*, members that speak one after the other because a step has ended or a quorum has broken.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from typing import Any

from tests.sim.scale_actor import LIBRARY, LIGHTHOUSE_BOOT, NOTHING, Actor, Run
from tests.sim.scale_checks import Checks
from torchft_x.core.lighthouse import Lighthouse, LighthouseConfig
from torchft_x.core.messages import (
    Closed,
    Extend,
    Fence,
    GroupAnnounced,
    Heard,
    Issue,
    Join,
    Leave,
    LighthouseEvent,
    Note,
    Probe,
    Probed,
    Progress,
    Refuse,
    SendOver,
    Tick,
)
from torchft_x.core.types import JoinReason, Member, Quorum, State

UNIX = 1_000_000.0
COLLECTIVE_TIMEOUT = 10.0


@dataclass(frozen=True, kw_only=True)
class Options:
    groups: int = 100
    steps: int = 100
    grants: bool = False
    """Members run on inside a grant (Progress, Extend); else each asks at every step."""
    deaths: float = 1.0
    """Lives that end per step and 10,000 groups; each is followed by a newcomer."""
    troubles: float = 0.3
    """Stops, cut sessions, false suspicions and misfits per step and 10,000 groups."""
    restarts: int = 300
    """The lighthouse loses its memory every so many steps. 0: never."""
    lease: float = 20.0
    books: int = 0
    """Events between two recounts of the lighthouse's books; 0: twenty per group."""
    seed: int = 0

    @property
    def step_seconds(self) -> float:
        return 0.1 if self.grants else 0.5


class World:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.rng = random.Random(options.seed)
        self.now = 0.0
        self.steps = 0  # committed by all members of a quorum together
        self.config = LighthouseConfig(
            min_replicas=max(1, options.groups // 2), join_timeout=1.0, lease=options.lease, boot_id=LIGHTHOUSE_BOOT
        )
        self.away = False  # there is no lighthouse now
        self.actors: dict[str, Actor] = {}  # replica id -> living or dead until its group has a newer life
        self.latest: dict[int, Actor] = {}  # group -> its newest life
        self.sessions: dict[int, Actor] = {}
        self._session = 0  # newest
        self.run: Run | None = None  # newest
        self.last_commit = 0.0
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._seq = 0
        self._lane: deque[Actor] = deque()
        self._gap = 0.02 / options.groups  # between two that speak
        self.count: Counter[str] = Counter()  # events by name, and what happened
        self.events = 0  # that the lighthouse has taken
        self.sampled: Counter[str] = Counter()  # of them, by name: those whose time was taken
        self.seconds: Counter[str] = Counter()  # CPU time of these
        self.quorum_seconds: list[float] = []  # CPU time of each event that led to a quorum
        self.halves: list[tuple[int, float]] = []  # events and CPU time at the start, half-way and at the end
        self.checks = Checks(self)
        self._start()

    # --- time ----------------------------------------------------------------------------------------------------

    def after(self, delay: float, do: Callable[..., None], *args: Any) -> None:
        self._seq += 1
        heapq.heappush(self._agenda, (self.now + delay, self._seq, do, args))

    def go(self) -> None:
        """Until all steps are committed."""
        for share in (0.0, 0.5, 1.0):
            self._go_on(round(share * self.options.steps))
            self.halves.append((self.events, process_time()))
        self.checks.books()

    def _go_on(self, steps: int) -> None:
        agenda, lane, gap = self._agenda, self._lane, self._gap
        while self.steps < steps:
            while lane and self.now + gap <= agenda[0][0]:
                self.now += gap
                self._speak(lane.popleft())
            at, _, do, args = heapq.heappop(agenda)
            self.now = at
            do(*args)

    def _start(self) -> None:
        self.lighthouse = Lighthouse(self.config, now=0.0, unix=UNIX)
        for group in range(self.options.groups):
            self.feed(GroupAnnounced(f"train_{group}", True))
            late = self.rng.random() < 0.01
            self.after(self.rng.uniform(5, 30) if late else self.rng.random(), self.newcomer, group, 0)
        self.after(self.config.tick, self._tick)
        self.after(1.0, self._ping)

    def _tick(self) -> None:
        self.after(self.config.tick, self._tick)
        self.feed(Tick())
        self.checks.alive()

    def _ping(self) -> None:
        """Whoever has said nothing for a second."""
        self.after(1.0, self._ping)
        for a in self.latest.values():
            if self.now - a.sent_at >= 1.0 and a.session is not None and a.able:
                a.sent_at = self.now
                self.feed(Heard(a.session))

    # --- the lighthouse ------------------------------------------------------------------------------------------

    def feed(self, event: LighthouseEvent) -> None:
        if self.away:
            return
        self.events += 1
        name = type(event).__name__
        self.count[name] += 1
        sampled = self.events % 31 == 0  # reading the clock takes half as long as an event
        if sampled or len(self.lighthouse._tenure.missing) < 2:
            started = process_time()
            effects = self.lighthouse.handle(event, self.now)
            spent = process_time() - started
            if effects and type(effects[-1]) is Issue:
                self.quorum_seconds.append(spent)
            elif sampled:
                self.sampled[name] += 1
                self.seconds[name] += spent
        else:
            effects = self.lighthouse.handle(event, self.now)
        for effect in effects:
            self._carry_out(effect)
        self.checks.after_event()

    def _carry_out(self, effect: Any) -> None:
        match effect:
            case Note():
                self.count[f"note {effect.event}"] += 1
                self.checks.on_note(effect)
            case Extend():
                self._on_extend(effect)
            case Issue():
                self.checks.on_issue(effect)
                self._on_issue(effect.quorum)
            case SendOver():
                for session in effect.sessions:
                    self._on_over(self.sessions[session], effect.quorum_id)
            case Probe():
                self.after(0.002, self._probed, effect)
            case Fence():
                self.end(self.sessions[effect.session])
            case Refuse():
                assert effect.session is not None
                refused = self.sessions[effect.session]
                self.checks.on_refused(refused, effect)
                self.end(refused)

    def _probed(self, probe: Probe) -> None:
        a = self.actors.get(probe.replica_id)
        self.feed(Probed(probe.replica_id, a is None or (not a.alive and a.powered)))

    def _on_over(self, a: Actor, quorum_id: int) -> None:
        if not a.alive or not a.linked:
            return
        if a.stopped:
            a.inbox.append(quorum_id)
        elif a.held is not None and a.held.id == quorum_id and not a.asking:
            run = self.run
            if run is not None and run.quorum.id == quorum_id and not run.broken:
                self.break_run(run)
            if a.wants is None:
                self.want(a, JoinReason.FAILED)
            elif a.wants is JoinReason.BOUNDARY:
                a.wants = JoinReason.REJOINED

    def _on_extend(self, extend: Extend) -> None:
        a = self.sessions[extend.session]
        self.checks.on_extend(a, extend)
        run = a.run
        if run is None:
            return
        a.lease_until = max(a.lease_until, a.asked_at + extend.lease)
        if extend.granted_through > a.granted:
            a.extended_at, a.granted = a.granted, extend.granted_through
            half = a.granted - (a.granted - a.extended_at) // 2
            if half < a.granted:
                run.due.setdefault(half, []).append(a)
            run.ends.setdefault(a.granted, []).append(a)
        if a.asking:
            a.asking = False
            a.set_active(True)

    def _on_issue(self, quorum: Quorum) -> None:
        if self.run is not None:
            self.run.broken = True
        actors = [self.actors[m.replica_id] for m in quorum.members]
        run = self.run = Run(quorum, actors)
        run.lease_until = self.now  # looked up when a step ends
        top = quorum.top.step
        for a in actors:
            a.asking = False
            a.run = run
            if a.alive and a.linked and not a.stopped:
                a.active = True
                self._receive(a, quorum, top)
                continue
            a.active = False
            run.blocked += 1
            if a.stopped and a.linked:
                a.inbox.append(quorum)
            elif a.alive:  # sent, but it never arrives
                a.run = None
                a.wants = a.reason  # the same join, on a new session
        run.ends[quorum.granted_through] = actors
        self.after(self.options.step_seconds * self.rng.uniform(0.8, 1.0), self._step_ends, run)

    def _receive(self, a: Actor, quorum: Quorum, top: int) -> None:
        a.held = quorum
        a.granted = quorum.granted_through
        a.extended_at = top
        a.lease_until = a.asked_at + quorum.lease

    # --- steps ---------------------------------------------------------------------------------------------------

    def _step_ends(self, run: Run) -> None:
        if run is not self.run or run.broken:
            return
        if run.blocked:  # the collective hangs until somebody says something
            run.hangs_since = run.hangs_since or self.now
            if self.now - run.hangs_since > COLLECTIVE_TIMEOUT:
                self.count["collectives timed out"] += 1
                self.break_run(run)
            self.after(0.05, self._step_ends, run)
            return
        run.hangs_since = None
        if self.now > run.lease_until and self._lapsed(run):
            return
        step = run.step + 1
        run.state = State(step, run.quorum.id)
        self.steps = max(self.steps, step)
        self.last_commit = self.now
        speakers = []
        for a in run.ends.pop(step, ()):
            if a.run is not run or a.granted > step:
                continue
            if self.options.grants and a.session is None:  # R16: no session, so it runs on while its lease lasts
                run.ends.setdefault(step + 1, []).append(a)
            else:
                a.wants = a.wants or JoinReason.BOUNDARY
                a.set_active(False)
                speakers.append(a)
        if step in run.due:
            speakers += [a for a in run.due.pop(step) if a.run is run and a.granted > step]
        self._lane.extend(self._mixed(speakers))
        if self.options.grants:
            self.after(self.options.step_seconds * self.rng.uniform(0.95, 1.05), self._step_ends, run)
        self.checks.on_step()

    def _lapsed(self, run: Run) -> bool:
        """Whether a lease is over, so that nothing commits any more (R13)."""
        run.lease_until = min(a.lease_until for a in run.actors)
        if self.now <= run.lease_until:
            return False
        self.break_run(run)
        return True

    def break_run(self, run: Run) -> None:
        """The collectives were released: who takes part fails, or has the result already."""
        run.broken = True
        self.count["broken runs"] += 1
        committed = State(run.step + 1, run.quorum.id)
        failed = []
        for a in run.actors:
            if a.run is not run or not a.active or a.wants is not None:
                continue
            a.settle()
            if run.partial and self.rng.random() < 0.5:
                a.state = committed
                a.wants = JoinReason.REJOINED
            else:
                a.wants = JoinReason.FAILED
            a.set_active(False)
            a.run = None
            failed.append(a)
        self._lane.extend(self._mixed(failed))

    def _mixed(self, actors: list[Actor]) -> list[Actor]:
        """In some other order. A real shuffle costs more than what is simulated."""
        stride = self.rng.randint(1, 7)
        mixed = [a for i in range(stride) for a in actors[i::stride]]
        return mixed if self.rng.random() < 0.5 else mixed[::-1]

    # --- members -------------------------------------------------------------------------------------------------

    def want(self, a: Actor, reason: JoinReason) -> None:
        """It leaves the step in hand and asks as soon as it can."""
        a.settle()
        a.set_active(False)
        a.wants = reason
        self._lane.append(a)

    def _speak(self, a: Actor) -> None:
        if not a.able or a.session is None:
            return
        if a.wants is not None:
            self.ask(a)
        elif a.active and a.held is not None and self.options.grants:
            assert a.run is not None
            a.asked_at = a.sent_at = self.now
            self.feed(Progress(a.session, a.held.id, a.run.step, 1, self.options.step_seconds))

    def ask(self, a: Actor, suspects: tuple[str, ...] = ()) -> None:
        session, reason = a.session, a.wants
        assert session is not None
        assert reason is not None
        a.settle()
        a.set_active(False)
        if a.leaving:
            self.leave(a)
            return
        a.member = Member(a.name, a.address, "store", a.state, False, 8, library=LIBRARY)
        a.asking, a.wants, a.reason = True, None, reason
        a.asked_at = a.sent_at = self.now
        traits = None if a.told_traits else a.traits()
        a.told_traits = True
        number = 1 if self.options.grants else 0
        self.feed(Join(session, a.member, reason, suspects, traits, number, self.options.step_seconds))

    def newcomer(self, group: int, attempt: int, misfit: bool = False) -> None:
        old = self.latest.get(group)
        if old is not None and old.alive:
            return
        if old is not None:
            self.actors.pop(old.name)
        a = self.actors[f"train_{group}:{attempt}"] = self.latest[group] = Actor(group, attempt, misfit=misfit)
        a.wants = JoinReason.NEW
        self.connect(a)

    def connect(self, a: Actor) -> None:
        if not a.alive or a.session is not None:
            return
        if self.away or a.stopped:
            self.after(0.2, self.connect, a)
            return
        self._session += 1
        a.session = session = self._session
        a.linked, a.told_traits, a.sent_at = True, False, self.now
        self.sessions[session] = a
        self.feed(a.hello(session, self.now))
        if a.session == session and a.wants is not None:
            self.ask(a)

    def disconnect(self, a: Actor, session: int) -> None:
        """The lighthouse sees the stream end."""
        if self.sessions.pop(session, None) is None:
            return
        if a.session == session:
            a.session, a.linked = None, False
            if a.asking:
                a.asking = False
                a.wants = a.reason  # the same join, on a new session
        self.feed(Closed(session))

    def leave(self, a: Actor) -> None:
        assert a.session is not None
        a.alive = False
        self.feed(Leave(a.session, a.state))
        self.after(0.01, self.disconnect, a, a.session)

    def end(self, a: Actor) -> None:
        """Its process ends now; the lighthouse hears nothing of it yet."""
        run = a.run
        if a.active and run is not None and not run.broken:
            run.partial = run.blocked == 0 and self.rng.random() < 0.3
        a.set_active(False)
        a.alive = False
        if a.session is not None:
            self.after(self.rng.uniform(0.005, 0.03) if a.powered else 30.0, self.disconnect, a, a.session)

    def stop(self, a: Actor) -> None:
        a.stopped = True
        a.set_active(False)

    def resume(self, a: Actor) -> None:
        a.stopped = False
        if not a.alive:
            return
        for said in a.inbox:
            if isinstance(said, Quorum):
                self._receive(a, said, said.top.step)
            else:
                self._on_over(a, said)
        a.inbox.clear()
        if a.run is not None and a.run is self.run and not a.asking and a.wants is None:
            if a.run.broken:
                self.want(a, JoinReason.FAILED)
            elif a.held is a.run.quorum:
                a.set_active(True)
        if a.session is not None and a.linked:
            a.sent_at = self.now
            self.feed(Heard(a.session))
        self._speak(a)

    # --- the lighthouse restarts ---------------------------------------------------------------------------------

    def lose_lighthouse(self) -> None:
        self.away = True
        self.count["restarts"] += 1
        for a in list(self.sessions.values()):
            a.session, a.linked = None, False
            if a.asking:
                a.asking = False
                a.wants = a.reason  # the same join, on a new session
            if a.alive:
                self.after(self.rng.uniform(2.0, 3.0), self.connect, a)
        self.sessions.clear()
        self.after(self.rng.uniform(1.0, 2.0), self._restart)

    def _restart(self) -> None:
        self.away = False
        config = LighthouseConfig(
            min_replicas=self.config.min_replicas,
            join_timeout=self.config.join_timeout,
            lease=self.config.lease,
            boot_id=LIGHTHOUSE_BOOT,
            new_job=False,
            restarted=True,
        )
        self.lighthouse = Lighthouse(config, now=self.now, unix=UNIX + self.now)
        for group in range(self.options.groups):
            self.feed(GroupAnnounced(f"train_{group}", True))


__all__ = ["NOTHING", "Options", "World"]
