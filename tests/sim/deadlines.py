"""The deadlines of one rank: any number of them, with one timer in the world's heap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.base import Process

if TYPE_CHECKING:
    from tests.sim.rank_node import RankNode
    from tests.sim.world import World


class Deadlines:
    """Table of one rank's waits and their deadlines in virtual time. Calls `on_deadline` of the owner at each."""

    def __init__(self, world: World, process: Process, owner: RankNode) -> None:
        self.until: dict[str, float] = {}  # virtual time, by name of the wait
        self._world = world
        self._process = process
        self._owner = owner  # its `on_deadline` is called
        self._timer = float("inf")  # virtual time of the next check; timers for other times are obsolete

    def arm(self, name: str, seconds: float) -> None:
        at = self._world.now + seconds
        self.until[name] = at
        if at < self._timer:
            self._timer = at
            self._world.at(at, self._process, self._look)

    def disarm(self, *names: str) -> None:
        for name in names:
            self.until.pop(name, None)

    def _look(self) -> None:
        now = self._world.now
        if now < self._timer:
            return
        self._timer = float("inf")
        for name in [name for name, at in self.until.items() if at <= now]:
            if self.until.pop(name, None) is not None:
                self._owner.on_deadline(name)
        if self.until and self._timer == float("inf"):
            self._timer = max(now, min(self.until.values()))
            self._world.at(self._timer, self._process, self._look)
