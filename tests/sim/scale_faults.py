"""Churn: who dies, stops, is cut off, leaves, comes, and when."""

from __future__ import annotations

from tests.sim.scale_actor import Actor
from tests.sim.scale_world import World
from torchft_x.core.messages.lighthouse import LifeEnded
from torchft_x.core.types import JoinReason

_TROUBLES = ("stop", "freeze", "cut", "cut", "replace", "suspect", "misfit")


class Churn:
    """Faults for each step in turn. Everything random comes from the world's generator."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._step = 0  # newest for which faults were drawn
        self._strangers = 0  # misfits so far
        self._restart_at = world.options.restarts

    def start(self) -> None:
        self._look()

    def _look(self) -> None:
        """Every step gets its faults once, at a time within it."""
        w, o = self._world, self._world.options
        w.after(o.step_seconds, self._look)
        if w.steps <= self._step:
            return
        steps, self._step = w.steps - self._step, w.steps
        for _ in range(self._draw(steps * o.deaths * o.groups / 10_000)):
            w.after(w.rng.uniform(0, o.step_seconds), self.death)
        for _ in range(self._draw(steps * o.troubles * o.groups / 10_000)):
            w.after(w.rng.uniform(0, o.step_seconds), getattr(self, w.rng.choice(_TROUBLES)))
        if o.restarts and w.steps >= self._restart_at and not w.away:
            self._restart_at += o.restarts
            w.after(w.rng.uniform(0, o.step_seconds), w.lose_lighthouse)

    def _draw(self, mean: float) -> int:
        rng, whole = self._world.rng, int(mean)
        return sum(rng.random() < 0.5 for _ in range(2 * whole)) + (rng.random() < mean - whole)

    def _victim(self) -> Actor | None:
        a = self._world.latest.get(self._world.rng.randrange(self._world.options.groups))
        return a if a is not None and a.alive and not a.stopped and not a.leaving else None

    # --- the end of a life ---------------------------------------------------------------------------------------

    def death(self) -> None:
        w, rng, a = self._world, self._world.rng, self._victim()
        if a is None:
            return
        kind = rng.random()
        w.count["deaths"] += 1
        w.after(rng.uniform(0.5, 4.0), self._return, a)
        if kind < 0.15:
            a.leaving = True
            return
        a.powered = kind >= 0.2
        others = a.run.actors if a.active and a.run is not None else []
        w.members.end(a)
        if a.powered and rng.random() < 0.5:
            w.after(rng.uniform(0.01, 0.1), w.feed, LifeEnded(a.token, -9))
        if a.powered and others and rng.random() < 0.3:  # a peer sees its collective fail first
            w.after(0.003, self._fail, rng.choice(others), (a.name,))

    def _return(self, a: Actor) -> None:
        w = self._world
        if a.alive:  # it still looks for a boundary to leave at
            w.after(1.0, self._return, a)
        elif w.latest[a.group] is a:
            w.members.newcomer(a.group, a.attempt + 1)

    # --- troubles ------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        self._stop(self._world.rng.uniform(0.1, 2.0))

    def freeze(self) -> None:
        self._stop(self._world.rng.uniform(6.0, 9.0))

    def _stop(self, seconds: float) -> None:
        w, a = self._world, self._victim()
        if a is not None:
            w.count["stops"] += 1
            w.members.stop(a)
            w.after(seconds, w.members.resume, a)

    def cut(self) -> None:
        """What is sent in the moment before the lighthouse notices is lost."""
        w, rng, a = self._world, self._world.rng, self._victim()
        if a is None or a.session is None:
            return
        w.count["cuts"] += 1
        a.linked = False
        noticed = rng.choice([0.0, rng.uniform(0.0, 0.3)])
        w.after(noticed, w.members.disconnect, a, a.session)
        w.after(noticed + rng.choice([rng.uniform(0.05, 1.0), rng.uniform(5.0, 9.0)]), w.members.connect, a)

    def replace(self) -> None:
        """The member alone sees its stream break, and is back on a new one before the lighthouse hears of it."""
        w, a = self._world, self._victim()
        if a is None or a.session is None or not a.linked:
            return
        w.count["replaced"] += 1
        a.linked = False
        w.after(w.rng.uniform(0.05, 1.0), self._on_a_new_one, a, a.session)

    def _on_a_new_one(self, a: Actor, session: int) -> None:
        if a.session == session:
            a.lose_session()
        self._world.members.connect(a)

    def suspect(self) -> None:
        a, other = self._victim(), self._victim()
        if a is not None and other is not None:
            self._fail(a, (other.name,))

    def _fail(self, a: Actor, suspects: tuple[str, ...]) -> None:
        """Its step fails, and it says whom it takes for the cause."""
        w = self._world
        if not a.active or a.wants is not None or not a.able or a.run is None:
            return
        w.count["suspicions"] += 1
        a.settle()
        a.set_active(False)
        a.run = None
        a.wants = JoinReason.FAILED
        if a.session is not None:
            w.members.ask(a, suspects)

    def misfit(self) -> None:
        run = self._world.run
        if run is None or sum(a.alive for a in run.actors[:8]) < 4:
            return  # were all others gone, it would be the one that counts
        self._strangers += 1
        self._world.count["misfits"] += 1
        self._world.members.newcomer(self._world.options.groups + self._strangers, 0, misfit=True)
