"""All actors together: a global state, what may happen in it, and what it becomes.

A global state is a tuple of numbers and small values; the actors behind the numbers are in `tables`.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any, NamedTuple

from tests.sim.untimed.life import Life
from tests.sim.untimed.light import Light
from tests.sim.untimed.mesh import Mesh, new_mesh
from tests.sim.untimed.tables import LifeFacts, Tables
from tests.sim.untimed.truth import Truth, Wrong
from tests.sim.untimed.values import Interner, Rules
from torchft_x.core.messages import lighthouse as m

Action = tuple[Any, ...]


class Channel(NamedTuple):
    """One session. What is under way in either direction arrives in order, then the end of the stream."""

    session: int
    name: str  # of the life
    place: int  # of the lighthouse
    up: tuple[int, ...] = ()
    down: tuple[int, ...] = ()
    up_open: bool = True  # what is sent from now on gets into `up`
    down_open: bool = True


class Global(NamedTuple):
    lights: tuple[int, ...]
    lives: tuple[tuple[str, int], ...]  # in the order of their names
    channels: tuple[Channel, ...]  # in the order of their sessions
    meshes: tuple[int, ...]
    reports: frozenset[
        tuple[str, int, int]
    ]  # lives whose exit a supervisor will report, to which lighthouse, and its code
    processes: frozenset[str]  # of lives that have left at the end of the training
    attempts: tuple[int, ...]  # the latest life of each group
    started: int  # lives of lighthouses
    truth: int
    faults: int  # still to come


class Model:
    """See the module."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.tables = Tables()
        self.meshes: Interner[Mesh] = Interner()
        self.truths: Interner[Truth] = Interner()
        self.names = rules.group_names[: rules.groups]
        self.closed = self.tables.messages.number("closed")

    def initial(self) -> Global:
        lives = tuple((f"{g}:1", self.new_life(g, 1)) for g in self.names)
        lights = (self.new_light(0),)
        truth = self.truths.number(Truth())
        return Global(
            lights,
            lives,
            (),
            (),
            frozenset(),
            frozenset(),
            (1,) * len(lives),
            1,
            truth,
            self.rules.faults,
        )

    @cache  # noqa: B019  (a model lives as long as its exploration)
    def new_life(self, group: str, attempt: int) -> int:
        return self.tables.lives.add(Life(self.rules, group, attempt))

    @cache  # noqa: B019
    def new_light(self, nth: int) -> int:
        return self.tables.lights.add(Light(self.rules, nth))

    def facts(self, state: Global) -> list[LifeFacts]:
        return [self.tables.lives.facts(n) for _, n in state.lives]

    def after(self, state: Global, action: Action) -> tuple[Global, list[Wrong]]:
        draft = Draft(self, state)
        draft.do(action)
        return draft.done(), draft.wrong

    def new_session(self, state: Global, group: str) -> int:
        """The lowest number that nothing in the state is about."""
        base = 10 * (1 + self.names.index(group))
        used = {c.session for c in state.channels}
        return next(n for n in range(base, base + 10) if n not in used)


class Draft:
    """A global state in the making. What is never looked at is taken over as it is."""

    def __init__(self, model: Model, state: Global) -> None:
        self.model = model
        self.wrong: list[Wrong] = []
        self.lights = list(state.lights)
        self.reports = state.reports
        self.processes = state.processes
        self.attempts = state.attempts
        self.started = state.started
        self.truth = state.truth
        self.faults = state.faults
        self._old = state

    @cached_property
    def lives(self) -> dict[str, int]:
        return dict(self._old.lives)

    @cached_property
    def channels(self) -> dict[int, Channel]:
        return {c.session: c for c in self._old.channels}

    @cached_property
    def meshes(self) -> dict[tuple[int, int], Mesh]:
        found = map(self.model.meshes.values.__getitem__, self._old.meshes)
        return {(x.config_id, x.rank): x for x in found}

    def done(self) -> Global:
        made, old, model = self.__dict__, self._old, self.model
        lives, channels, meshes = old.lives, old.channels, old.meshes
        if "lives" in made:
            lives = tuple(sorted(self.lives.items()))
        if "channels" in made:
            found = (self.channels[session] for session in sorted(self.channels))
            channels = tuple(c for c in found if c.up or c.down or c.up_open or c.down_open)
        if "meshes" in made:
            facts = model.tables.lives.facts
            configs = {(c, r) for n in self.lives.values() for r, c in enumerate(facts(n).configs)}
            meshes = tuple(sorted(model.meshes.number(x) for k, x in self.meshes.items() if k in configs))
        return Global(
            tuple(self.lights), lives, channels, meshes, self.reports, self.processes, self.attempts, self.started,
            self.truth, self.faults,
        )  # fmt: skip

    def facts(self, name: str) -> LifeFacts:
        return self.model.tables.lives.facts(self.lives[name])

    # --- actions -----------------------------------------------------------------------------------------------------

    def do(self, action: Action) -> None:
        what, *args = action
        if what in self.model.rules.kinds:
            self.faults -= 1
        getattr(self, f"_do_{what}")(*args)

    def _do_up(self, session: int) -> None:
        channel = self.channels[session]
        self.channels[session] = channel._replace(up=channel.up[1:])
        number = channel.up[0]
        message = self.model.tables.messages.values[number]
        event = m.Closed(session) if number == self.model.closed else message
        self.light(channel.place, (session, number), event)

    def _do_ping(self, session: int) -> None:
        """A sign of life; only looked at while it makes a difference."""
        self.light(self.channels[session].place, ("ping", session), m.Heard(session))

    def _do_down(self, session: int) -> None:
        channel = self.channels[session]
        self.channels[session] = channel._replace(down=channel.down[1:])
        number = channel.down[0]
        if channel.name in self.lives:
            self.life(channel.name, ("down", number), ("down", self.model.tables.messages.values[number]))

    def _do_ask(self, name: str, rank: int) -> None:
        self.life(name, ("ask", rank))

    def _do_take(self, name: str, rank: int, well: bool) -> None:
        key = (self.facts(name).configs[rank], rank)
        mesh = self.meshes[key]
        row = mesh.outcome(name) if well else None
        self.meshes[key] = mesh.take(name)
        self.life(name, ("taken", rank, row))

    def _do_heal(self, name: str, rank: int) -> None:
        source = self.facts(next(h[1] for h in self.facts(name).heals if h[0] == rank))
        snapshot = source.snapshots[rank]
        assert snapshot is not None
        self.life(name, ("healed", rank, source.values[rank] if self.model.rules.serve_live else snapshot[1]))

    def _do_unhealed(self, name: str, rank: int, torn: bool) -> None:
        self.life(name, ("torn", rank) if torn else ("healed", rank, None))

    def _do_connect(self, name: str, place: int) -> None:
        session = self.model.new_session(self._old, self.facts(name).group)
        self.channels[session] = Channel(session, name, place)
        self.life(name, ("connect", session))

    def _do_report(self, name: str, place: int, code: int) -> None:
        self.reports -= {(name, place, code)}
        self.light(place, ("ended", name, code), m.LifeEnded(f"token-{name}", code))

    def _do_exit(self, name: str, code: int) -> None:
        """The process of a life that has left ends. Who fails is started again."""
        self.processes -= {name}
        self.reports |= {(name, place, code) for place in range(len(self.lights))}
        if code:
            self._true(self.model.truths.values[self.truth].failed(name))
            self._do_twin(name.split(":")[0])

    def _do_silent(self, name: str, place: int) -> None:
        self.light(place, ("silent", (name,)))

    def _do_pass_time(self, aged: tuple[str, ...]) -> None:
        self._do_lease(aged)

    # --- faults ------------------------------------------------------------------------------------------------------

    def _do_suspect(self, name: str, place: int) -> None:
        self._do_silent(name, place)

    def _do_crash(self, name: str, keep: bool) -> None:
        group = self.facts(name).group
        self.end(name, keep_up=keep)
        self._do_twin(group)

    def _do_crash_reported(self, name: str, keep: bool) -> None:
        self._do_crash(name, keep)
        self.reports |= {(name, place, 1) for place in range(len(self.lights))}

    def _do_twin(self, group: str) -> None:
        """The next life of a group begins."""
        i = self.model.names.index(group)
        self.attempts = tuple(n + (j == i) for j, n in enumerate(self.attempts))
        self.lives[f"{group}:{self.attempts[i]}"] = self.model.new_life(group, self.attempts[i])

    def _do_cut(self, session: int, keep_up: bool, keep_down: bool) -> None:
        self.cut(session, keep_up=keep_up, keep_down=keep_down)

    def _do_lighthouse(self, place: int, keep_down: bool) -> None:
        for session, channel in list(self.channels.items()):
            if channel.place == place:
                self.cut(session, keep_up=False, keep_down=keep_down)
                self.channels[session] = self.channels[session]._replace(up=())
        self.lights[place] = self.model.new_light(self.started)
        self.started += 1

    def _do_lease(self, aged: tuple[str, ...]) -> None:
        """A long time passes: leases end but of those that renew them."""
        renewed = tuple(sorted(set(self.lives) - set(aged)))
        for name in aged:
            if name in self.lives:
                self.life(name, ("age",))
        for place in range(len(self.lights)):
            self.light(place, ("age", renewed))

    def _do_leave(self, name: str) -> None:
        self.life(name, ("depart",))

    def _do_finish(self, name: str) -> None:
        self._do_leave(name)
        self.processes |= {name}
        self._true(self.model.truths.values[self.truth].finished(name))

    def _do_error(self, name: str, rank: int) -> None:
        self._do_take(name, rank, False)

    def _do_fetch(self, name: str, rank: int, torn: bool) -> None:
        self._do_unhealed(name, rank, torn)

    def _do_call(self, name: str, rank: int) -> None:
        self.life(name, ("lost", rank))

    # --- parts -------------------------------------------------------------------------------------------------------

    def cut(self, session: int, *, keep_up: bool, keep_down: bool) -> None:
        c, closed = self.channels[session], self.model.closed
        self.channels[session] = c._replace(
            up=((c.up if keep_up else ()) + (closed,)) if c.up_open else c.up,
            down=((c.down if keep_down else ()) + (closed,)) if c.down_open else c.down,
            up_open=False,
            down_open=False,
        )

    def end(self, name: str, *, keep_up: bool) -> None:
        """This life is over: its streams close, its collectives break."""
        session = self.facts(name).session
        del self.lives[name]
        for number, c in list(self.channels.items()):
            if c.name == name:
                if c.up_open:
                    self.cut(number, keep_up=keep_up or number != session, keep_down=False)
                self.channels[number] = self.channels[number]._replace(down=(), down_open=False)
        for key, mesh in self.meshes.items():
            if name in mesh.members:
                self.meshes[key] = mesh.leave(name)

    def light(self, place: int, event: Any, meaning: Any = None) -> None:
        self.lights[place], out = self.model.tables.lights.step(self.lights[place], event, meaning)
        for what, *args in out:
            if what == "push":
                self._push(*args)
            elif what == "hang_up":
                self._hang_up(*args)
            elif what == "issue":
                self._issued(*args)
            else:
                self.wrong.append((args[0], args[1]))

    def _push(self, session: int, message: Any) -> None:
        c = self.channels.get(session)
        if c is not None and c.down_open:
            self.channels[session] = c._replace(down=(*c.down, self.model.tables.messages.number(message)))

    def _hang_up(self, session: int) -> None:
        if session in self.channels:
            self.cut(session, keep_up=True, keep_down=True)

    def _issued(self, quorum: Any, fresh: bool, follows: int) -> None:
        truth = self.model.truths.values[self.truth]
        before = truth.newest
        able: list[str] = []
        claims: list[Wrong] = []
        for name in self.lives:
            f = self.facts(name)
            if before is not None and f.quorum_id == before.id and f.lease and not f.joined:
                able.append(name)
            member = quorum.member(name)
            if member is not None and f.joined and not member.torn and set(f.states) != {member.state}:
                claims.append(("I1", f"the quorum has {name} at {member.state}, but it stands at {f.state}"))
        truth, wrong = truth.issued(quorum, fresh, follows, able, claims, self.processes)
        self.truth = self.model.truths.number(truth)
        self.wrong += wrong

    def _true(self, truth: Truth) -> None:
        self.truth = self.model.truths.number(truth)

    def life(self, name: str, event: Any, meaning: Any = None) -> None:
        self.lives[name], out = self.model.tables.lives.step(self.lives[name], event, meaning)
        for what, *args in out:
            if name in self.lives:  # nothing is said after its end
                getattr(self, f"_out_{what}")(name, *args)

    def _out_up(self, name: str, message: Any) -> None:
        c = self.channels.get(message.session)
        if c is not None and c.up_open:
            self.channels[c.session] = c._replace(up=(*c.up, self.model.tables.messages.number(message)))

    def _out_mesh(self, name: str, rank: int, config_id: int, members: tuple[str, ...]) -> None:
        for key, mesh in self.meshes.items():
            if name in mesh.members and key[1] == rank and key[0] != config_id:
                self.meshes[key] = mesh.leave(name)
        if (config_id, rank) not in self.meshes:
            gone = {n for n in members if n not in self.lives or self.facts(n).configs[rank] > config_id}
            self.meshes[config_id, rank] = new_mesh(config_id, rank, members, frozenset(gone))

    def _out_post(self, name: str, rank: int, row: Any) -> None:
        key = (self.facts(name).configs[rank], rank)
        self.meshes[key] = self.meshes[key].post(name, row)

    def _out_left(self, name: str, rank: int) -> None:
        key = (self.facts(name).configs[rank], rank)
        if key in self.meshes:
            self.meshes[key] = self.meshes[key].leave(name)

    def _out_commit(self, name: str, *args: Any) -> None:
        truth, wrong = self.model.truths.values[self.truth].committed(self.model.rules, name, *args)
        self.truth = self.model.truths.number(truth)
        self.wrong += wrong

    def _out_held(self, name: str, *args: Any) -> None:
        self.wrong += self.model.truths.values[self.truth].held(name, *args)

    def _out_end(self, name: str, why: str) -> None:
        self.end(name, keep_up=True)

    def _out_died(self, name: str, why: str) -> None:
        self._do_crash(name, True)

    def _out_wrong(self, name: str, invariant: str, text: str) -> None:
        self.wrong.append((invariant, f"{name}: {text}"))
