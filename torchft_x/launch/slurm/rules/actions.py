"""Values of `launch.slurm.rules.restart`: the lighthouse's status of a job's supervisors, and the actions on the job's parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchft_x.launch.slurm.rules.manifest import Part


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
    """Return the status from the lighthouse's JSON answer. Raise `ValueError` if it is a standby's or of another shape."""
    if "standby" in status:
        raise ValueError(str(status["standby"]))
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
