"""Values of `restart`: the lighthouse's status of supervisors, a watcher's memory of parts, and the actions on parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchft_x.launch.slurm.rules.manifest import Part
from torchft_x.launch.slurm.rules.queue import Row


@dataclass(frozen=True)
class Supervisor:
    """Supervisor with a stream to the lighthouse."""

    group: str
    node: int
    """Index of the node in the group, from 0."""
    silent: float
    """Seconds since its last message."""


@dataclass(frozen=True)
class LighthouseStatus:
    """Status of a job's supervisors, from the lighthouse."""

    supervisors: tuple[Supervisor, ...]
    over: frozenset[str]
    """Groups whose supervisors have reported that the group has finished or failed."""
    uptime: float
    """Seconds for which the lighthouse has served. A new lighthouse knows only the supervisors that have reconnected."""

    def near(self, group: str, limit: float) -> set[int]:
        """Return the nodes of the group whose supervisors sent a message within the last `limit` seconds."""
        return {s.node for s in self.supervisors if s.group == group and s.silent <= limit}


@dataclass(frozen=True)
class SkipBeginTime:
    """Action: end a requeued part's wait for BeginTime, and let it use every node again that Slurm takes for a good one."""

    part: Part


@dataclass(frozen=True)
class LiftExclusions:
    """Action: let a waiting part use every node again."""

    part: Part


@dataclass(frozen=True)
class Reschedule:
    """Action: have Slurm's scheduler make a round now, for a part that waits for room."""

    part: Part


@dataclass(frozen=True)
class Resubmit:
    """Action: submit a part anew as a job of its own, without these nodes, then cancel its earlier job."""

    part: Part
    why: str
    """Reason, as a clause."""
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cancel:
    """Action: cancel jobs that were replaced by others."""

    jobs: tuple[str, ...]


@dataclass(frozen=True)
class ReportLost:
    """Action: report to the lighthouse all groups that will not come back, each with the reason (a clause)."""

    lost: Mapping[str, str]
    back: frozenset[str] = frozenset()
    """Groups that were reported as lost, and run again."""


@dataclass(frozen=True)
class RecordSubmission:
    """Action: write down the job id of a submission that has appeared in the queue."""

    part: Part
    job: str


Action = SkipBeginTime | LiftExclusions | Reschedule | Resubmit | Cancel | ReportLost | RecordSubmission


def read_status(status: Mapping[str, Any]) -> LighthouseStatus:
    """Return the status from the lighthouse's JSON answer. Raise `ValueError` if it is of another shape."""
    try:
        supervisors = tuple(
            Supervisor(str(one["group"]), int(one["node"]), float(one["heard"])) for one in status["supervisors"]
        )
        states = {str(group): str(one["state"]) for group, one in status.get("groups", {}).items()}
        return LighthouseStatus(
            supervisors,
            frozenset(group for group, state in states.items() if state in ("finished", "failed")),
            float(status["uptime"]),
        )
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"no status of a lighthouse: {e}") from None


@dataclass
class PartMemory:
    """Memory of one part. Times are seconds of the watcher's own clock. The first seven fields are of the present start."""

    start: tuple[str, int] = ("", 0)
    """Its job id, and the number of times that Slurm has requeued that job."""
    waiting: bool = False
    """Whether it waited in the queue when it was last seen."""
    runs_since: float | None = None
    """Time since which it runs."""
    came: set[int] = field(default_factory=set)
    """Nodes whose supervisors have reported to the lighthouse."""
    silent_since: float | None = None
    """Time since which a supervisor that had reported is silent."""
    unknown_since: float | None = None
    """Time since which it has ended without a report of how, or Slurm does not know it."""
    waits_since: float | None = None
    """Time since which it waits for room; None if it does not."""
    nodes: tuple[str, ...] = ()
    """Nodes on which it ran last."""
    excluded: tuple[str, ...] = ()
    """Nodes that are excluded for it."""
    submitted: deque[float] = field(default_factory=deque)
    """Times at which it was submitted anew within the window."""
    not_before: float = 0.0
    """Earliest time of its next submission."""

    def begin(self, row: Row) -> None:
        """Take the part's row in the queue. Reset the memory of an earlier start."""
        if (row.job, row.restarts) != self.start:
            self.start = row.job, row.restarts
            self.came.clear()
            self.silent_since = self.unknown_since = self.waits_since = self.runs_since = None
        self.waiting = row.state == "PENDING"
        if row.nodes:
            self.nodes = row.nodes

    def unknown_for(self, now: float) -> float:
        """Return the seconds since `unknown_since`, which begins now if it is None."""
        self.unknown_since = now if self.unknown_since is None else self.unknown_since
        return now - self.unknown_since

    def to_json(self, unix: float) -> dict[str, Any]:
        """Return the memory for the next watcher. `unix` is the Unix time less this clock's, in seconds.

        Values that a new watcher measures itself are left out.
        """
        return {
            "start": list(self.start),
            "came": sorted(self.came),
            "silent_since": None if self.silent_since is None else round(self.silent_since + unix, 1),
            "nodes": list(self.nodes),
            "excluded": list(self.excluded),
            "submitted": [round(t + unix, 1) for t in self.submitted],
        }


def read_memory(found: Any, unix: float) -> PartMemory | None:
    """Return the memory from `to_json`'s value, or None for any other value. `unix` is the Unix time less this clock's."""
    if not isinstance(found, Mapping):
        return None
    try:
        job, restarts = found["start"]
        silent = found.get("silent_since")
        return PartMemory(
            start=(str(job), int(restarts)),
            came={int(node) for node in found["came"]},
            silent_since=None if silent is None else float(silent) - unix,
            nodes=tuple(map(str, found["nodes"])),
            excluded=tuple(map(str, found["excluded"])),
            submitted=deque(float(t) - unix for t in found["submitted"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
