"""A lighthouse with up to ten thousand members in virtual time. The lighthouse is the product's; the rest is lean.

All members of a quorum step together, so one object (`FlatView`) says how far they are; a member is touched only when it
says or hears something. Two queues: the *agenda*, a heap of rare things (ticks, faults, the end of a step), and the
*lane*, members that speak one after the other because a step has ended or a quorum has broken.
"""

from __future__ import annotations

import gc
import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from typing import Any

from tests.sim.scale_actor import LIGHTHOUSE_BOOT, Actor, Run
from tests.sim.scale_checks import Checks
from tests.sim.scale_course import Course
from tests.sim.scale_members import Members
from torchft_x.core.lighthouse.machine import Lighthouse, LighthouseConfig
from torchft_x.core.messages.common import Note, Tick
from torchft_x.core.messages.job import SupervisorHere
from torchft_x.core.messages.lighthouse import (
    CloseSession,
    Extend,
    Fence,
    Heard,
    Issue,
    LighthouseEffect,
    LighthouseEvent,
    Probe,
    Probed,
    Refuse,
    RevokeQuorum,
)
from torchft_x.core.types import JoinReason

UNIX = 1_000_000.0


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
            min_replicas=max(1, options.groups // 2),
            join_timeout=1.0,
            lease=options.lease,
            boot_id=LIGHTHOUSE_BOOT,
            give_up_after=0.0,
        )
        self.away = False  # there is no lighthouse now
        self.actors: dict[str, Actor] = {}  # replica id -> living or dead until its group has a newer life
        self.latest: dict[int, Actor] = {}  # group -> its newest life
        self.sessions: dict[int, Actor] = {}
        self.sessions_opened = 0  # newest
        self.run: Run | None = None  # newest
        self.last_commit = 0.0
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._seq = 0
        self.lane: deque[Actor] = deque()
        self._gap = 0.02 / options.groups  # between two that speak
        self.count: Counter[str] = Counter()  # events by name, and what happened
        self.events = 0  # that the lighthouse has taken
        self.sampled: Counter[str] = Counter()  # of them, by name: those whose time was taken
        self.seconds: Counter[str] = Counter()  # CPU time of these
        self.quorum_seconds: list[float] = []  # CPU time of each event that led to a quorum
        self.halves: list[tuple[int, float]] = []  # events and CPU time at the start, half-way and at the end
        self.members = Members(self)
        self.course = Course(self)
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
        agenda, lane, gap = self._agenda, self.lane, self._gap
        while self.steps < steps:
            while lane and self.now + gap <= agenda[0][0]:
                self.now += gap
                self.members.speak(lane.popleft())
            at, _, do, args = heapq.heappop(agenda)
            self.now = at
            do(*args)

    def _start(self) -> None:
        self.lighthouse = Lighthouse(self.config, now=0.0, unix=UNIX)
        for group in range(self.options.groups):
            self.feed(SupervisorHere(f"train_{group}", "host", stream=group))
            late = self.rng.random() < 0.01
            self.after(self.rng.uniform(5, 30) if late else self.rng.random(), self.members.newcomer, group, 0)
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
        kind, lighthouse = type(event), self.lighthouse
        self.count[kind.__name__] += 1
        sampled, tenure = self.events % 101 == 0, lighthouse._tenure  # reading the clock takes longer than an event
        if sampled or (len(tenure.missing) < 2 and kind is not Heard and tenure.current is not None):
            effects = self._timed(event, sampled)
        else:
            effects = lighthouse.handle(event, self.now)
        for effect in effects:
            self._carry_out(effect)
        self.checks.after_event()

    def _timed(self, event: LighthouseEvent, sampled: bool) -> list[LighthouseEffect]:
        started = process_time()
        effects = self.lighthouse.handle(event, self.now)
        spent = process_time() - started
        if effects and type(effects[-1]) is Issue:
            self.quorum_seconds.append(spent)
        elif sampled:
            name = type(event).__name__
            self.sampled[name] += 1
            self.seconds[name] += spent
        return effects

    def _carry_out(self, effect: Any) -> None:
        match effect:
            case Note():
                self.count[f"note {effect.event}"] += 1
                self.checks.on_note(effect)
            case Extend():
                self._on_extend(effect)
            case Issue():
                self.checks.on_issue(effect)
                self.course.begin(effect.quorum)
            case RevokeQuorum():
                for session in effect.sessions:
                    self._on_over(self.sessions[session], effect.quorum_id)
            case Probe():
                self.after(0.002, self._probed, effect)
            case Fence():
                self.members.end(self.sessions[effect.session])
            case CloseSession():
                replaced = self.sessions.get(effect.session)
                if replaced is not None:
                    self.after(0.002, self.members.disconnect, replaced, effect.session)
            case Refuse():
                assert effect.session is not None
                refused = self.sessions[effect.session]
                self.checks.on_refused(refused, effect)
                self.members.end(refused)

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
                self.course.break_run(run)
            if a.wants is None:
                self.members.want(a, JoinReason.FAILED)
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

    # --- the lighthouse restarts ---------------------------------------------------------------------------------

    def lose_lighthouse(self) -> None:
        self.away = True
        self.count["restarts"] += 1
        for a in list(self.sessions.values()):
            a.lose_session()
            if a.alive:
                self.after(self.rng.uniform(2.0, 3.0), self.members.connect, a)
        self.sessions.clear()
        self.after(self.rng.uniform(1.0, 2.0), self._restart)

    def _restart(self) -> None:
        self.away = False
        config = LighthouseConfig(
            min_replicas=self.config.min_replicas,
            join_timeout=self.config.join_timeout,
            lease=self.config.lease,
            boot_id=LIGHTHOUSE_BOOT,
            give_up_after=0.0,
            new_job=False,
            restarted=True,
        )
        self.lighthouse = Lighthouse(config, now=self.now, unix=UNIX + self.now)
        gc.collect()
        for group in range(self.options.groups):
            self.feed(SupervisorHere(f"train_{group}", "host", stream=group))
