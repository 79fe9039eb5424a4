"""A sidecar: a program beside the groups (an evaluator, a data service) that lives as long as the job.

A sidecar is kept running as a group is (base.py), with the job's lighthouse, token and run directory in its environment.
It has no influence on how the job ends: if a sidecar fails, the groups train on; when they are done, it is stopped.
A program that exits with 0 is done and is not restarted.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchft_x import env
from torchft_x.errors import ConfigError
from torchft_x.launch.process.restarts import AttemptEnd
from torchft_x.launch.supervisor.base import BaseSupervisor
from torchft_x.launch.supervisor.config import BaseConfig, attempt_environment
from torchft_x.launch.supervisor.coordination import Attempts, StartedAttempt
from torchft_x.launch.supervisor.locate import Reports
from torchft_x.launch.workers.attempt import Attempt, AttemptSpec
from torchft_x.timing import TIMING


@dataclass(frozen=True, kw_only=True)
class SidecarConfig(BaseConfig):
    """Settings of a sidecar's supervisor. Raises `ConfigError` naming the field that is wrong."""

    sidecar: str
    """Name of the sidecar in the job; two sidecars of one name are stopped together."""
    patience: float = TIMING.sidecar_patience
    """Seconds without a lighthouse after which the job counts as over."""

    def __post_init__(self) -> None:
        if not self.sidecar or not self.sidecar.isprintable():
            raise ConfigError("--name is empty or holds unprintable characters; give the sidecar a name.")
        if not self.command:
            raise ConfigError(
                "No program given: name it after --, as in `torchft_x accompany --name evaluator -- CMD`."
            )

    @property
    def whole(self) -> str:
        return f"sidecar {self.sidecar}"


class Sidecar(BaseSupervisor):
    """Supervisor of one sidecar."""

    role = "sidecar"
    code_without_launcher = 0
    config: SidecarConfig

    def _check_command(self) -> None:
        program = self.config.command[0]
        if shutil.which(program, path=self._environ.get("PATH")) is None:
            raise ConfigError(f"The program {program} is not there, or can't be executed; name another after --.")

    def _event_fields(self) -> dict[str, Any]:
        return {"sidecar": self.config.sidecar}

    def _make_attempts(self, reports: Reports) -> Attempts:
        return Attempts(reports)

    def _on_turn(self, attempt: Attempt, started: StartedAttempt, halt: tuple[str, float] | None) -> None:
        patience = self.config.patience
        if self._reports is not None and self._reports.away() > patience:
            self._stops.request(0, f"the lighthouse has been away for {patience:g} s: the job counts as over")

    def _live(self, attempts: Attempts) -> AttemptEnd | None:
        """Run one attempt. It made progress if it ran for `rules.quick` seconds: a sidecar commits no steps."""
        end = super()._live(attempts)
        return None if end is None else replace(end, progress=end.uptime >= self.config.rules.quick)

    def _spec(self, started: StartedAttempt, folder: Path) -> AttemptSpec:
        config = self.config
        assert self._found is not None
        attempt = env.AttemptEnv(number=started.attempt, lighthouse_file=self._found.address_file)
        return AttemptSpec(
            command=config.command,
            workers=1,
            env=attempt_environment(config, self._environ, attempt, self._found, self._host),
            folder=folder,
            run_dir=config.run_dir,
            name=f"sidecar-{config.sidecar.replace('/', '_')}-attempt-{started.attempt}",
            program=True,
            labels=self._labels("sidecar"),
        )
