"""Transitions of single actors, each computed once: who is in a state that was met before does what it did before.

An actor's state is a number here. Interleavings of a few hundred actor states make millions of global ones, so almost
every global transition is a look-up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.sim.untimed.freeze import clone, key
from tests.sim.untimed.life import Life
from tests.sim.untimed.light import Light
from tests.sim.untimed.values import Interner, Value
from torchft_x.core.membership.members import MemberRecord
from torchft_x.core.types import State

Result = tuple[int, tuple[Any, ...]]
"""The actor's next state, and what came out."""


class Table:
    """All states of one kind of actor that were met."""

    def __init__(self, facts: Callable[[Any], Any]) -> None:
        self._numbers: dict[Any, int] = {}  # key -> number
        self._actors: list[Any] = []  # by number; never changed
        self._facts_of = facts
        self._facts: list[Any] = []  # by number
        self._memo: dict[tuple[int, Any], Result] = {}

    def __len__(self) -> int:
        return len(self._actors)

    def add(self, actor: Any) -> int:
        number = self._numbers.setdefault(key(actor), len(self._actors))
        if number == len(self._actors):
            self._actors.append(actor)
            self._facts.append(self._facts_of(actor))
        return number

    def facts(self, number: int) -> Any:
        return self._facts[number]

    def step(self, number: int, event: Any, meaning: Any = None) -> Result:
        """The actor takes an event; `meaning`: the event itself, if `event` only stands for it."""
        found = self._memo.get((number, event))
        if found is None:
            actor = clone(self._actors[number])
            try:
                out = tuple(actor.handle(event if meaning is None else meaning))
            except Exception as e:  # a defect of a machine is a finding, too
                out = (("wrong", "X", f"{type(e).__name__}: {e}"),)
            found = self._memo[number, event] = (self.add(actor), out)
        return found


@dataclass(frozen=True, slots=True)
class LifeFacts:
    """What may happen to a life, and what others need to know about it."""

    name: str
    group: str
    attempt: int
    session: int | None
    stands: bool
    state: State
    states: tuple[State, ...]  # of the ranks
    value: Value  # of rank 0
    torn: bool
    joined: bool  # has asked for a quorum and is frozen
    quorum_id: int  # in hand
    lease: bool  # is valid
    idle: bool
    parked: bool
    asks: tuple[int, ...]  # ranks that may ask
    waits: tuple[int, ...]  # ranks that have asked
    takes: tuple[tuple[int, int], ...]  # (rank, config id) of those in a collective
    heals: tuple[tuple[int, str, State, bool], ...]  # rank, source, what it fetches, whether it may get torn
    snapshots: tuple[tuple[State, Value] | None, ...]
    values: tuple[Value, ...]
    configs: tuple[int, ...]


def life_facts(life: Life) -> LifeFacts:
    ranks = list(enumerate(life.ranks))
    hold = life.machine._hold
    return LifeFacts(
        name=life.name,
        group=life.group,
        attempt=life.attempt,
        session=life.session,
        stands=life.stands,
        state=life.state,
        states=tuple(rank.step.state for _, rank in ranks),
        value=life.ranks[0].value,
        torn=any(rank.step.torn for _, rank in ranks),
        joined=life.machine._join is not None,
        quorum_id=hold.quorum_id,
        lease=hold.lease_until >= 0.0 and hold.quorum is not None,
        idle=life.idle,
        parked=any(rank.stage == "parked" for _, rank in ranks),
        asks=tuple(r for r, rank in ranks if rank.stage == "idle"),
        waits=tuple(r for r, rank in ranks if rank.stage == "asking"),
        takes=tuple((r, rank.config_id) for r, rank in ranks if rank.stage in ("reducing", "crossing")),
        heals=tuple(
            (r, rank.sources[0], rank.step.top, rank.waits and rank.step.top.step > 0)
            for r, rank in ranks
            if rank.sources and rank.stage != "parked"
        ),
        snapshots=tuple(rank.snapshot for _, rank in ranks),
        values=tuple(rank.value for _, rank in ranks),
        configs=tuple(rank.config_id for _, rank in ranks),
    )


@dataclass(frozen=True, slots=True)
class LightFacts:
    """What the lighthouse thinks of whom."""

    silent: tuple[str, ...]  # those it may find to be silent: no session, not lost
    blamable: tuple[str, ...]  # with a session, not lost
    doubted: tuple[int, ...]  # sessions of those it takes for lost
    renews: frozenset[str]  # whose lease it renews when they ask
    asked: bool  # somebody waits for a quorum


def light_facts(light: Light) -> LightFacts:
    tenure = light.machine._tenure
    records = list(light.machine._roll)
    return LightFacts(
        asked=bool(tenure.asking),
        silent=tuple(sorted(r.replica_id for r in records if r.session is None and not r.lost)),
        blamable=tuple(sorted(r.replica_id for r in records if r.session is not None and not r.lost)),
        doubted=tuple(sorted(r.session for r in records if r.session is not None and _would_hear(r))),
        renews=frozenset(
            r.replica_id
            for r in records
            if r.session is not None and not r.lost and not tenure.broken and tenure.holds_current(r)
        ),
    )


def _would_hear(record: MemberRecord) -> bool:
    """Whether a sign of life changes anything."""
    return bool(record.lost) and bool(record.join or record.proof or not record.told or not record.quorum_id)


class Tables:
    """Of a whole exploration."""

    def __init__(self) -> None:
        self.lives = Table(life_facts)
        self.lights = Table(light_facts)
        self.messages: Interner[Any] = Interner()
