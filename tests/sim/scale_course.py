"""The steps that the members of a quorum take together: they begin, end, hang and break as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.scale_actor import Actor, Run
from torchft_x.core.types import JoinReason, Quorum, State

if TYPE_CHECKING:
    from tests.sim.scale_world import World

COLLECTIVE_TIMEOUT = 10.0


class Course:
    """Part of the world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def begin(self, quorum: Quorum) -> None:
        if self._world.run is not None:
            self._world.run.broken = True
        actors = [self._world.actors[m.replica_id] for m in quorum.members]
        run = self._world.run = Run(quorum, actors)
        run.lease_until = self._world.now  # looked up when a step ends
        top = quorum.top.step
        for a in actors:
            a.asking = False
            a.run = run
            if a.alive and a.linked and not a.stopped:
                a.active = True
                self.receive(a, quorum, top)
                continue
            a.active = False
            run.blocked += 1
            if a.stopped and a.linked:
                a.inbox.append(quorum)
            elif a.alive:  # sent, but it never arrives
                a.run = None
                a.wants = a.reason  # the same join, on a new session
        run.ends[quorum.granted_through] = actors
        self._world.after(self._world.options.step_seconds * self._world.rng.uniform(0.8, 1.0), self._ends, run)

    def receive(self, a: Actor, quorum: Quorum, top: int) -> None:
        a.held = quorum
        a.granted = quorum.granted_through
        a.extended_at = top
        a.lease_until = a.asked_at + quorum.lease

    def _ends(self, run: Run) -> None:
        if run is not self._world.run or run.broken:
            return
        if run.blocked:  # the collective hangs until somebody says something
            run.hangs_since = run.hangs_since or self._world.now
            if self._world.now - run.hangs_since > COLLECTIVE_TIMEOUT:
                self._world.count["collectives timed out"] += 1
                self.break_run(run)
            self._world.after(0.05, self._ends, run)
            return
        run.hangs_since = None
        if self._world.now > run.lease_until and self._lapsed(run):
            return
        step = run.step + 1
        run.state = State(step, run.quorum.id)
        self._world.steps = max(self._world.steps, step)
        self._world.last_commit = self._world.now
        speakers = []
        for a in run.ends.pop(step, ()):
            if a.run is not run or a.granted > step:
                continue
            if self._world.options.grants and a.session is None:  # R16: no session, so it runs on while its lease lasts
                run.ends.setdefault(step + 1, []).append(a)
            else:
                a.wants = a.wants or JoinReason.BOUNDARY
                a.set_active(False)
                speakers.append(a)
        if step in run.due:
            speakers += [a for a in run.due.pop(step) if a.run is run and a.granted > step]
        self._world.lane.extend(self._mixed(speakers))
        if self._world.options.grants:
            self._world.after(self._world.options.step_seconds * self._world.rng.uniform(0.95, 1.05), self._ends, run)
        self._world.checks.on_step()

    def _lapsed(self, run: Run) -> bool:
        """Whether a lease is over, so that nothing commits any more (R13)."""
        run.lease_until = min(a.lease_until for a in run.actors)
        if self._world.now <= run.lease_until:
            return False
        self.break_run(run)
        return True

    def break_run(self, run: Run) -> None:
        """The collectives were released: who takes part fails, or has the result already."""
        run.broken = True
        self._world.count["broken runs"] += 1
        committed = State(run.step + 1, run.quorum.id)
        failed = []
        for a in run.actors:
            if a.run is not run or not a.active or a.wants is not None:
                continue
            a.settle()
            if run.partial and self._world.rng.random() < 0.5:
                a.state = committed
                a.wants = JoinReason.REJOINED
            else:
                a.wants = JoinReason.FAILED
            a.set_active(False)
            a.run = None
            failed.append(a)
        self._world.lane.extend(self._mixed(failed))

    def _mixed(self, actors: list[Actor]) -> list[Actor]:
        """In some other order. A real shuffle costs more than what is simulated."""
        stride = self._world.rng.randint(1, 7)
        mixed = [a for i in range(stride) for a in actors[i::stride]]
        return mixed if self._world.rng.random() < 0.5 else mixed[::-1]
