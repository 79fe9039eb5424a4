"""What members do in the large simulation: connect, ask, leave, die, stop, are cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.scale_actor import LIBRARY, Actor
from torchft_x.core.messages.lighthouse import Closed, Heard, Join, Leave, Progress
from torchft_x.core.types import JoinReason, Member, Quorum

if TYPE_CHECKING:
    from tests.sim.scale_world import World


class Members:
    """Part of the world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def want(self, a: Actor, reason: JoinReason) -> None:
        """It leaves the step in hand and asks as soon as it can."""
        a.settle()
        a.set_active(False)
        a.wants = reason
        self._world.lane.append(a)

    def speak(self, a: Actor) -> None:
        if not a.able or a.session is None:
            return
        if a.wants is not None:
            self.ask(a)
        elif a.active and a.held is not None and self._world.options.grants:
            assert a.run is not None
            a.asked_at = a.sent_at = self._world.now
            self._world.feed(Progress(a.session, a.held.id, a.run.step, 1, self._world.options.step_seconds))

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
        a.asked_at = a.sent_at = self._world.now
        traits = None if a.told_traits else a.traits()
        a.told_traits = True
        number = 1 if self._world.options.grants else 0
        self._world.feed(Join(session, a.member, reason, suspects, traits, number, self._world.options.step_seconds))

    def newcomer(self, group: int, attempt: int, misfit: bool = False) -> None:
        old = self._world.latest.get(group)
        if old is not None and old.alive:
            return
        if old is not None:
            self._world.actors.pop(old.name)
            old.run = None  # whose actors it is one of: a circle that only the garbage collector would find
        a = self._world.actors[f"train_{group}:{attempt}"] = self._world.latest[group] = Actor(
            group, attempt, misfit=misfit
        )
        a.wants = JoinReason.NEW
        self.connect(a)

    def connect(self, a: Actor) -> None:
        if not a.alive or a.session is not None:
            return
        if self._world.away or a.stopped:
            self._world.after(0.2, self.connect, a)
            return
        self._world.sessions_opened += 1
        a.session = session = self._world.sessions_opened
        a.linked, a.told_traits, a.sent_at = True, False, self._world.now
        self._world.sessions[session] = a
        self._world.feed(a.hello(session, self._world.now))
        if a.session == session and a.wants is not None:
            self.ask(a)

    def disconnect(self, a: Actor, session: int) -> None:
        """The lighthouse sees the stream end."""
        if self._world.sessions.pop(session, None) is None:
            return
        if a.session == session:
            a.lose_session()
        self._world.feed(Closed(session))

    def leave(self, a: Actor) -> None:
        assert a.session is not None
        a.alive = False
        self._world.feed(Leave(a.session, a.state))
        self._world.after(0.01, self.disconnect, a, a.session)

    def end(self, a: Actor) -> None:
        """Its process ends now; the lighthouse hears nothing of it yet."""
        run = a.run
        if a.active and run is not None and not run.broken:
            run.partial = run.blocked == 0 and self._world.rng.random() < 0.3
        a.set_active(False)
        a.alive = False
        if a.session is not None:
            self._world.after(
                self._world.rng.uniform(0.005, 0.03) if a.powered else 30.0, self.disconnect, a, a.session
            )

    def stop(self, a: Actor) -> None:
        a.stopped = True
        a.set_active(False)

    def resume(self, a: Actor) -> None:
        a.stopped = False
        if not a.alive:
            return
        for said in a.inbox:
            if isinstance(said, Quorum):
                self._world.course.receive(a, said, said.top.step)
            else:
                self._world._on_over(a, said)
        a.inbox.clear()
        if a.run is not None and a.run is self._world.run and not a.asking and a.wants is None:
            if a.run.broken:
                self.want(a, JoinReason.FAILED)
            elif a.held is a.run.quorum:
                a.set_active(True)
        if a.session is not None and a.linked:
            a.sent_at = self._world.now
            self._world.feed(Heard(a.session))
        self.speak(a)
