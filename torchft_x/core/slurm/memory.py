"""What a watcher remembers of a part, and hands on to the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchft_x.core.slurm.queue import Row


@dataclass
class PartMemory:
    """Times are seconds of the watcher's own clock. The first eight are of the part's present start."""

    start: tuple[str, int] = ("", 0)
    """Its job, and how often Slurm has requeued that."""
    waiting: bool = False
    """It was in the queue, and did not run, when it was last seen."""
    queued_since: float | None = None
    """It waits for room."""
    runs_since: float | None = None
    came: set[int] = field(default_factory=set)
    """Nodes whose supervisors were heard."""
    silent_since: float | None = None
    unknown_since: float | None = None
    """It has ended and nobody has told how, or Slurm does not know it."""
    waits_since: float | None = None
    """For resources, while nodes are excluded for it."""
    nodes: tuple[str, ...] = ()
    """On which it ran last."""
    excluded: tuple[str, ...] = ()
    trusted: bool = False
    """Slurm took the excluded ones for good."""
    submitted: deque[float] = field(default_factory=deque)
    """When it was submitted anew, or let go, within the window."""
    not_before: float = 0.0
    """It is submitted, or let go."""
    refusals: int = 0
    """In a row, of sbatch."""

    def begin(self, row: Row) -> None:
        """It is in the queue."""
        if (row.job, row.restarts) != self.start:
            self.start = row.job, row.restarts
            self.came.clear()
            self.silent_since = self.unknown_since = self.waits_since = self.queued_since = self.runs_since = None
        self.waiting = row.state == "PENDING"
        if row.nodes:
            self.nodes = row.nodes

    def to_json(self, unix: float) -> dict[str, Any]:
        """`unix`: unix seconds less those of this clock. What is measured anew is left out."""
        return {
            "start": list(self.start),
            "came": sorted(self.came),
            "nodes": list(self.nodes),
            "excluded": list(self.excluded),
            "trusted": self.trusted,
            "submitted": [round(t + unix, 1) for t in self.submitted],
        }


def from_json(found: Any, unix: float) -> PartMemory | None:
    """None for what `to_json` hasn't made."""
    if not isinstance(found, Mapping):
        return None
    try:
        job, restarts = found["start"]
        return PartMemory(
            start=(str(job), int(restarts)),
            came={int(node) for node in found["came"]},
            nodes=tuple(map(str, found["nodes"])),
            excluded=tuple(map(str, found["excluded"])),
            trusted=bool(found["trusted"]),
            submitted=deque(float(t) - unix for t in found["submitted"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
