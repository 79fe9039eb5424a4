"""Faults, which are values, and schedules, which are tuples of them.

The package `kinds` defines what each kind of fault does.

A fault counts when it has struck. One whose target does not exist when its time comes does nothing. One that waits for
its occasion (a trap, a spoilt heal, a veto) may never strike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.group_node import GroupNode
    from tests.sim.world import World


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: when, what, and to which target.

    `target` is a group or a site; `other` is a second one, or what the kind's docstring says. Both are empty where not
    needed.
    """

    at: float
    kind: str
    target: str = ""
    seconds: float = 0.0
    other: str = ""

    def __str__(self) -> str:
        parts = [f"{self.at:8.3f} s", self.kind, self.target, self.other]
        return " ".join(p for p in parts if p) + (f" for {self.seconds:.3f} s" if self.seconds else "")


Act = Callable[["World", Fault], bool]
"""Function that carries a fault out. It returns False if there is no target, or if the fault waits and counts when it
strikes.
"""

KINDS: dict[str, Act] = {}
"""All kinds by name. Filled by the package `kinds`."""


def kind(act: Act) -> Act:
    """Register a function as a kind of fault, under its own name."""
    KINDS[act.__name__] = act
    return act


def arm(world: World, faults: Iterable[Fault]) -> None:
    for fault in faults:
        world.at(fault.at, None, strike, world, fault)


def strike(world: World, fault: Fault) -> None:
    """Carry the fault out, and count it if it took effect."""
    world.note("--- fault", "{}", fault)
    if KINDS[fault.kind](world, fault):
        world.counts[fault.kind] += 1


def node_of(world: World, group: str) -> GroupNode | None:
    """Return the running attempt of a group, or None."""
    supervisor = world.supervisors.get(group)
    return supervisor.node if supervisor is not None and supervisor.running else None


def site_of(world: World, name: str) -> str:
    """Return the site of a group's host (``g1``), of its supervisor (``sg1``), or `name` itself if it is a site."""
    if name in world.supervisors:
        return world.supervisors[name].host
    if name[:1] == "s" and name[1:] in world.supervisors:
        return world.supervisors[name[1:]].process.site
    return name
