"""What may happen in a global state: steps of the actors, and faults while there are some to come."""

from __future__ import annotations

from collections.abc import Iterator

from tests.sim.untimed.mesh import Mesh
from tests.sim.untimed.model import Action, Global, Model
from tests.sim.untimed.tables import LifeFacts


def steps(model: Model, state: Global) -> list[Action]:
    """What the actors may do next. Nothing here is a fault."""
    found: list[Action] = []
    for c in state.channels:
        if c.up:
            found.append(("up", c.session))
        if c.down:
            found.append(("down", c.session))
    facts = model.facts(state)
    slow, others = held_back(facts), {f.name: f for f in facts}
    for f in facts:
        found += _of_life(model, state, f, others, slow and f.state.step >= model.rules.steps)
    for place, number in enumerate(state.lights):
        light = model.tables.lights.facts(number)
        found += (("silent", name, place) for name in light.silent)
        found += (
            ("ping", c.session)
            for c in state.channels
            if c.place == place and c.session in light.doubted and c.up_open and not c.up
        )
        found += (("report", name, place, code) for name, where, code in sorted(state.reports) if where == place)
    found += (("exit", name, code) for name in sorted(state.processes) for code in (0, 1))
    return found


def in_order(model: Model, state: Global) -> list[Action]:
    """One step whose order with all others does not matter, if there is one: then the others may wait for it.

    Without faults to come, a group that is frozen (R4; of one rank, so that all of it waits) does nothing but take the
    next message of its stream, or connect. Nobody else can do these for it, undo them, or see the difference: others
    only put messages behind, and what the group sends goes behind what is under way. So every schedule in which it
    comes later has an equal one in which it comes now (a persistent set of one). The checks at the issue of a quorum
    do look at who is frozen; here they see those that will be free again as free, which is the stricter view.
    """
    if state.faults or model.rules.ranks > 1:
        return []
    for f in model.facts(state):
        if not f.waits:
            continue
        if f.session is None:
            return [("connect", f.name, 0)]
        if any(c.session == f.session and c.down for c in state.channels):
            return [("down", f.session)]
    return []


def held_back(facts: list[LifeFacts]) -> bool:
    """Whether groups that have reached the target go on only when nothing else happens.

    They wait for the others, so that the model has an end: all that is asked for beyond the target is that they come
    together again. A group goes on alone if somebody asks for a quorum and it must reach its next boundary first.
    """
    return len({f.quorum_id for f in facts}) > 1


def _of_life(model: Model, state: Global, f: LifeFacts, others: dict[str, LifeFacts], slow: bool) -> Iterator[Action]:
    if f.session is None:
        for place in range(len(state.lights)):
            yield ("connect", f.name, place)
    for rank in f.asks:
        yield ("ask", f.name, rank)
    for rank, mesh in _meshes(model, state, f):
        if mesh.outcome(f.name) is not None and not slow:
            yield ("take", f.name, rank, True)
        if mesh.disturbed(f.name):
            yield ("take", f.name, rank, False)
    for rank, source, top, may_tear in f.heals:
        held = others[source].snapshots[rank] if source in others else None
        if held is not None and held[0] == top:
            yield ("heal", f.name, rank)
        elif source not in others or others[source].quorum_id >= f.quorum_id:  # gone, or beyond it
            yield ("unhealed", f.name, rank, False)
            if may_tear:
                yield ("unhealed", f.name, rank, True)


def _meshes(model: Model, state: Global, f: LifeFacts) -> Iterator[tuple[int, Mesh]]:
    """Of the ranks that are in a collective."""
    if f.takes:
        found = {(x.config_id, x.rank): x for x in map(model.meshes.values.__getitem__, state.meshes)}
        for rank, config_id in f.takes:
            yield rank, found[config_id, rank]


def patience(model: Model, state: Global) -> list[Action]:
    """What happens when nothing else does: who was held back goes on, then deadlines pass, in the end those of leases."""
    facts = model.facts(state)
    collectives = [(f.name, rank, x.outcome(f.name) is not None) for f in facts for rank, x in _meshes(model, state, f)]
    asked = {place for place, number in enumerate(state.lights) if model.tables.lights.facts(number).asked}
    needed = {c.name for c in state.channels if c.place in asked}
    on: list[Action] = [("take", name, rank, True) for name, rank, well in collectives if well and name in needed]
    if on:
        return on
    late: list[Action] = [("take", name, rank, False) for name, rank, well in collectives if not well]
    late += (("unhealed", f.name, h[0], False) for f in facts for h in f.heals)
    if late:
        return late
    renewing = _renewing(model, state, facts)
    late.append(("pass_time", tuple(f.name for f in facts if f.name not in renewing)))
    return late


def _renewing(model: Model, state: Global, facts: list[LifeFacts]) -> list[str]:
    """Lives that can have their lease renewed while time passes."""
    if not model.rules.grants:
        return []
    whole = {(c.name, c.place) for c in state.channels if c.up_open and c.down_open}
    return [
        f.name
        for f in facts
        if f.stands
        and f.lease
        and any(
            (f.name, place) in whole and f.name in model.tables.lights.facts(number).renews
            for place, number in enumerate(state.lights)
        )
    ]


def faults(model: Model, state: Global) -> list[Action]:
    """What may go wrong now."""
    if not state.faults:
        return []
    kinds = model.rules.kinds
    facts = model.facts(state)
    return [action for kind in kinds for action in _FAULTS[kind](model, state, facts)]


def _up_kept(state: Global, f: LifeFacts) -> list[bool]:
    """Whether what a life has sent still arrives: both, if there is something."""
    pending = any(c.session == f.session and c.up for c in state.channels)
    return [True, False] if pending else [True]


def _crash(model: Model, state: Global, facts: list[LifeFacts]) -> Iterator[Action]:
    for f in facts:
        for keep in _up_kept(state, f):
            yield ("crash", f.name, keep)


def _crash_reported(model: Model, state: Global, facts: list[LifeFacts]) -> Iterator[Action]:
    for f in facts:
        for keep in _up_kept(state, f):
            yield ("crash_reported", f.name, keep)


def _cut(model: Model, state: Global, facts: list[LifeFacts]) -> Iterator[Action]:
    for c in state.channels:
        if c.up_open and c.down_open:
            for up in [True, False] if c.up else [True]:
                for down in [True, False] if c.down else [True]:
                    yield ("cut", c.session, up, down)


def _lighthouse(model: Model, state: Global, facts: list[LifeFacts]) -> Iterator[Action]:
    for place in range(len(state.lights)):
        pending = any(c.place == place and c.down for c in state.channels)
        for keep in [True, False] if pending else [True]:
            yield ("lighthouse", place, keep)


def _lease(model: Model, state: Global, facts: list[LifeFacts]) -> Iterator[Action]:
    """Leases end: of all that can't renew them, and perhaps of one more, or of all."""
    renewing = _renewing(model, state, facts)
    lost = [f.name for f in facts if f.name not in renewing]
    options = {tuple(lost), tuple(f.name for f in facts)} | {tuple(sorted([*lost, one])) for one in renewing}
    for aged in sorted(options):
        yield ("lease", aged)


def _suspect(model: Model, state: Global, facts: list[LifeFacts]) -> Iterator[Action]:
    for place, number in enumerate(state.lights):
        for name in model.tables.lights.facts(number).blamable:
            yield ("suspect", name, place)


def _twin(model: Model, state: Global, facts: list[LifeFacts]) -> Iterator[Action]:
    """A new life of a group begins though the older one goes on."""
    for f in facts:
        if f.attempt == state.attempts[model.names.index(f.group)]:
            yield ("twin", f.group)


def _leave(model: Model, state: Global, facts: list[LifeFacts]) -> Iterator[Action]:
    groups = {f.group for f in facts}
    for f in facts:
        if f.idle and len(groups) > 1 and f.attempt == state.attempts[model.names.index(f.group)]:
            yield ("leave", f.name)


def _finish(model: Model, state: Global, facts: list[LifeFacts]) -> Iterator[Action]:
    for f in facts:
        if f.idle and f.stands and f.state.step and f.attempt == state.attempts[model.names.index(f.group)]:
            yield ("finish", f.name)


def _error(model: Model, state: Global, facts: list[LifeFacts]) -> Iterator[Action]:
    for f in facts:
        for rank, _ in f.takes:
            yield ("error", f.name, rank)


def _fetch(model: Model, state: Global, facts: list[LifeFacts]) -> Iterator[Action]:
    for f in facts:
        for rank, _, _, may_tear in f.heals:
            yield ("fetch", f.name, rank, False)
            if may_tear:
                yield ("fetch", f.name, rank, True)


def _call(model: Model, state: Global, facts: list[LifeFacts]) -> Iterator[Action]:
    for f in facts:
        for rank in f.waits:
            yield ("call", f.name, rank)


_FAULTS = {
    "crash": _crash,  # nobody reports it; the group starts again
    "crash_reported": _crash_reported,  # its supervisor will
    "cut": _cut,  # a session breaks; what is under way arrives or not
    "lighthouse": _lighthouse,  # it dies and comes back without a memory
    "lease": _lease,
    "suspect": _suspect,  # somebody who lives is silent for too long
    "twin": _twin,
    "leave": _leave,
    "finish": _finish,  # at the end of its training; its process lives on
    "error": _error,  # a collective fails for one rank
    "fetch": _fetch,  # a heal fails
    "call": _call,  # a rank's call for a quorum breaks
}


def is_well(model: Model, state: Global) -> bool:
    """All groups that live have committed the target or a later step together: in the quorum that each has in hand."""
    facts = model.facts(state)
    if not facts:
        return True  # all have left
    first = facts[0].state
    together = all(set(f.states) == {first} and f.quorum_id == first.committed_in for f in facts)
    return together and first.step >= model.rules.steps


def is_alone(model: Model, state: Global) -> bool:
    """Somebody has gone on and on though another waits."""
    return any(f.parked for f in model.facts(state))
