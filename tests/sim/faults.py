"""A fault is a value; a schedule is a tuple of them. What each kind does is a function in `tests.sim.kinds`.

A fault counts when it has struck: one whose target is not there when its time comes does nothing, and one that lies in
wait (a trap, a spoilt heal, a veto) may meet nobody.
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
    """One fault. `target`: a group or a site; `other`: a second one, or what the kind says. Empty where not needed."""

    at: float
    kind: str
    target: str = ""
    seconds: float = 0.0
    other: str = ""

    def __str__(self) -> str:
        parts = [f"{self.at:8.3f} s", self.kind, self.target, self.other]
        return " ".join(p for p in parts if p) + (f" for {self.seconds:.3f} s" if self.seconds else "")


Act = Callable[["World", Fault], bool]
"""Carries the fault out; False: there was nothing to do it to, or it lies in wait and counts when it strikes."""

KINDS: dict[str, Act] = {}
"""Every kind by its name. Filled by `tests.sim.kinds`."""


def kind(act: Act) -> Act:
    """Make a function a kind of fault, under its own name."""
    KINDS[act.__name__] = act
    return act


def arm(world: World, faults: Iterable[Fault]) -> None:
    for fault in faults:
        world.at(fault.at, None, strike, world, fault)


def strike(world: World, fault: Fault) -> None:
    """The fault happens now."""
    world.note("--- fault", "{}", fault)
    if KINDS[fault.kind](world, fault):
        world.counts[fault.kind] += 1


def node_of(world: World, group: str) -> GroupNode | None:
    """The running life of a group."""
    supervisor = world.supervisors.get(group)
    return supervisor.node if supervisor is not None and supervisor.running else None


def site_of(world: World, name: str) -> str:
    """The site of a group's present host (``g1``), of its supervisor (``sg1``), or the site that has this name."""
    if name in world.supervisors:
        return world.supervisors[name].host
    if name[:1] == "s" and name[1:] in world.supervisors:
        return world.supervisors[name[1:]].process.site
    return name
