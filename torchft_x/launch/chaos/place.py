"""Where the processes of a job can be struck: what each scheduler has to bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, order=True)
class Target:
    """A living process of the run."""

    role: str  # worker, supervisor or lighthouse
    group: str  # empty: of the lighthouse
    rank: int
    pid: int  # on its host
    pod: str = ""  # of a cluster, where `pid` is 0

    def __str__(self) -> str:
        what = f"pod {self.pod}" if self.pod else f"process {self.pid}"
        where = f" of group {self.group}" if self.group else ""
        return f"{self.role}{f' {self.rank}' if self.role == 'worker' else ''}{where} ({what})"


class Place(Protocol):
    """One run under one scheduler."""

    def targets(self) -> list[Target]:
        """Who lives now. Empty: the job is over, or never was here."""

    def strike(self, target: Target, kind: str, seconds: float | None = None) -> bool:
        """Do it, at once. `seconds`: of a hang; None: without end. False: it has just ended, or is none of this run's any
        more, or can't hang now."""

    def resume(self, target: Target) -> None:
        """End a stop. Nothing, if it has ended meanwhile."""
