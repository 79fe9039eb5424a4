"""What the lighthouse says of a job's supervisors, and what is to be done about its parts: values of `core.slurm.restart`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchft_x.core.slurm.manifest import Part


@dataclass(frozen=True)
class Supervisor:
    """One that has a stream to the lighthouse."""

    group: str
    node: int
    """Of the group, from 0."""
    silent: float
    """Seconds since it was heard."""


@dataclass(frozen=True)
class Heard:
    """What the lighthouse says."""

    supervisors: tuple[Supervisor, ...]
    over: frozenset[str]
    """Groups whose supervisors have said that they are done, well or not."""
    uptime: float
    """Seconds that it has served: it hears of everybody anew."""

    def near(self, group: str, limit: float) -> set[int]:
        """Nodes of the group whose supervisors were heard within `limit` seconds."""
        return {s.node for s in self.supervisors if s.group == group and s.silent <= limit}


@dataclass(frozen=True)
class Kick:
    """End its wait for BeginTime, and keep it off these nodes."""

    part: Part
    exclude: tuple[str, ...]


@dataclass(frozen=True)
class Release:
    """Slurm holds it after a launch that failed."""

    part: Part
    exclude: tuple[str, ...]


@dataclass(frozen=True)
class Lift:
    """It may use every node again."""

    part: Part


@dataclass(frozen=True)
class Reschedule:
    """It waits for room, and Slurm's scheduler is to look for some now."""

    part: Part


@dataclass(frozen=True)
class Anew:
    """Submit it as a job of its own, off these nodes; then cancel what it was."""

    part: Part
    why: str
    """A clause."""
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cancel:
    """What others are in the place of."""

    jobs: tuple[str, ...]


@dataclass(frozen=True)
class TellLost:
    """Of each group that will not come back, why (a clause): all of them, for the lighthouse."""

    lost: Mapping[str, str]


@dataclass(frozen=True)
class Settle:
    """A submission is confirmed by the queue: write its id down."""


@dataclass(frozen=True)
class Over:
    """There is nothing more to watch."""


Action = Kick | Release | Lift | Reschedule | Anew | Cancel | TellLost | Settle | Over


def heard_from(status: Mapping[str, Any]) -> Heard:
    """From the lighthouse's answer. Raises ValueError if it is of another shape."""
    if "standby" in status:
        raise ValueError(str(status["standby"]))
    try:
        supervisors = tuple(
            Supervisor(str(one["group"]), int(one["node"]), float(one["heard"])) for one in status["supervisors"]
        )
        states = {str(group): str(one["state"]) for group, one in status.get("groups", {}).items()}
        return Heard(
            supervisors,
            frozenset(group for group, state in states.items() if state in ("finished", "failed")),
            float(status["uptime"]),
        )
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"no status of a lighthouse: {e}") from None
