"""What must hold in the large simulation. Per event in constant time; per quorum, and now and then, in linear time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchft_x.core.lighthouse.machine import Lighthouse
from torchft_x.core.messages.common import Note
from torchft_x.core.messages.lighthouse import Extend, Issue, Refuse
from torchft_x.core.quorum.rule import Wait
from torchft_x.core.types import Quorum

if TYPE_CHECKING:
    from tests.sim.scale_actor import Actor
    from tests.sim.scale_world import World


class ViolationError(AssertionError):
    """A rule was broken: which, when, with which seed."""


class Checks:
    def __init__(self, world: World) -> None:
        self._world = world
        self._every = world.options.books or 20 * world.options.groups
        self._left = self._every  # events until the next recount
        self._last: Quorum | None = None  # newest quorum, over all lives of the lighthouse
        self._issuer: Lighthouse | None = None  # of that one
        self._new_lineage = False  # announced by a note since
        self.recounts = 0

    def _demand(self, holds: bool, rule: str, *details: object) -> None:
        if not holds:
            w = self._world
            text = " ".join(str(d) for d in details)
            raise ViolationError(f"{rule} at {w.now:.3f} s, step {w.steps}, seed {w.options.seed}: {text}")

    # --- after every event ---------------------------------------------------------------------------------------

    def after_event(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._left = self._every
            self.books()

    def on_note(self, note: Note) -> None:
        self._new_lineage = self._new_lineage or note.event == "new_lineage"

    def on_extend(self, a: Actor, extend: Extend) -> None:
        held = a.held
        self._demand(held is not None and held.id == extend.quorum_id, "R7: a grant for another quorum", a, extend)
        self._demand(extend.granted_through >= a.granted, "R7: a grant shrinks", a, extend)
        self._demand(self._last is held, "R7: a grant in a quorum that has a successor", a, extend)

    def on_refused(self, a: Actor, refuse: Refuse) -> None:
        self._demand(a.misfit, "a member was refused that fits", a, refuse)

    def alive(self) -> None:
        """L1: something is committed now and then."""
        w = self._world
        limit = w.config.lease + w.config.lease_margin + 4 * w.config.silence.alone + 10.0
        self._demand(w.now - w.last_commit < limit, "L1: nothing is committed any more", w.lighthouse, w.run)

    def on_step(self) -> None:
        run = self._world.run
        assert run is not None
        self._demand(run.quorum is self._last, "I4: a step is committed in a quorum that has a successor")

    # --- a quorum ------------------------------------------------------------------------------------------------

    def on_issue(self, issue: Issue) -> None:
        w, q, last = self._world, issue.quorum, self._last
        actors = [w.actors.get(m.replica_id) for m in q.members]
        names = [m.replica_id for m in q.members]
        self._demand(names == sorted(set(names)), "members out of order", q.number)
        sessions = []
        for member, a in zip(q.members, actors, strict=True):
            if a is None or not a.asking or a.member is not member or a.misfit:  # R3, R4: its present join, unaltered
                self._demand(False, "R3/R4: a member that has not asked like this", member, a)
                return
            sessions.append(a.session)
        self._demand(tuple(sessions) == issue.sessions, "not sent to its members", q.number)
        self._demand(q.granted_through == q.top.step + 1, "R7: granted more than one step ahead", q.number)
        here = set(names)
        for a in w.latest.values():
            if a.asking and a.able and a.name not in here and not a.misfit:
                self._demand(False, "L2: left out of the next quorum though alive and asking", a)
        if last is not None:
            self._follows(last, q, here)
        self._last, self._issuer, self._new_lineage = q, w.lighthouse, False

    def _follows(self, last: Quorum, q: Quorum, here: set[str]) -> None:
        w = self._world
        self._demand(q.id > last.id, "I3: ids must grow", q.id, last.id)
        before = [m.replica_id for m in last.members]
        outside = [w.actors[name] for name in before if name not in here and name in w.actors]
        for a in outside:
            gone = not a.alive or a.stopped or a.session is None
            self._demand(gone, "L2: a living member was not waited for", a)
        carriers = {m.replica_id for m in last.carriers}
        inside = set(before)
        heirs = any(m.replica_id in inside and (m.replica_id in carriers or m.state >= last.top) for m in q.members)
        if heirs:
            self._demand(q.top >= last.top, "progress was lost within a lineage", last.top, q.top)
        else:
            running = [a for a in outside if a.alive and a.held is last and a.lease_until > w.now]
            self._demand(not running, "I4: a new lineage while members of the last quorum may commit", running)
            knew = self._issuer is w.lighthouse  # one without memory can't know that there was another
            self._demand(self._new_lineage or not knew, "R9b: a new lineage without a word")
        self._demand(q.config_id in (q.id, last.config_id), "the config id comes from nowhere", q.config_id)
        if before != [m.replica_id for m in q.members]:
            self._demand(q.config_id == q.id, "members changed and process groups were not rebuilt", q.number)

    # --- now and then --------------------------------------------------------------------------------------------

    def books(self) -> None:
        """The lighthouse's books are what a recount says, and nothing that could be formed is left."""
        self.recounts += 1
        lighthouse = self._world.lighthouse
        tenure, roll = lighthouse._tenure, lighthouse._roll
        inside = [r for r in (roll.get(name) for name in tenure.inside) if r is not None]
        self._demand(len(inside) == len(tenure.inside), "a member has no record")
        asking = {r.replica_id for r in roll if r.join is not None and not r.lost}
        self._demand(tenure.asking == asking, "books: asking", tenure.asking ^ asking)
        missing = {r.replica_id for r in inside if r.join is None and not r.lost}
        self._demand(tenure.missing == missing, "books: missing", tenure.missing ^ missing)
        gone = {r.replica_id for r in inside if r.lost}
        self._demand(tenure.gone == gone, "books: gone", tenure.gone ^ gone)
        silent = {r.replica_id for r in roll if not r.lost and r.join is None and (r.unary or r.session is not None)}
        self._demand(tenure.silent == silent, "books: silent", tenure.silent ^ silent)
        apart = {r.replica_id for r in roll if r.session is None}
        self._demand(set(roll._apart) == apart, "books: without a session", set(roll._apart) ^ apart)
        self._demand(len(roll) <= 2 * self._world.options.groups + 10, "records are kept for ever", len(roll))
        if tenure.asking and not self._world.away:
            formable = lighthouse._succession.outcome(self._world.now - lighthouse._config.tick)  # time counts at ticks
            self._demand(isinstance(formable, Wait), "L2: a quorum could be formed and is not")
