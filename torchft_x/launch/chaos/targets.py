"""Interface through which chaos finds and strikes the processes of a job, implemented for each scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, order=True)
class Target:
    """Living process of the run."""

    role: str  # worker, supervisor or lighthouse
    group: str  # group id; '' for the lighthouse
    rank: int
    pid: int  # process id on its host; 0 on Kubernetes
    pod: str = ""  # name of the pod on Kubernetes, else ''

    def __str__(self) -> str:
        what = f"pod {self.pod}" if self.pod else f"process {self.pid}"
        where = f" of group {self.group}" if self.group else ""
        return f"{self.role}{f' {self.rank}' if self.role == 'worker' else ''}{where} ({what})"


class Targets(Protocol):
    """Processes of a run under one scheduler, with the means to strike them."""

    def living(self) -> list[Target]:
        """Return the living processes; none if the job is over, or never ran here."""

    def strike(self, target: Target, kind: str, seconds: float | None = None) -> bool:
        """Cause the fault at once, and return whether it took effect. `seconds` is the length of a hang; None is endless.

        Return False if the process has just ended, no longer belongs to this run, or can't hang now.
        """

    def resume(self, target: Target) -> None:
        """End a stop. Do nothing if the process has ended."""
