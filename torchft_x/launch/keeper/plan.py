"""Plan of a keeper's job. The launcher writes it with mode 0600, as it holds --env; the keeper reads it once."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from torchft_x.address_files import make_run_dir
from torchft_x.errors import ConfigError
from torchft_x.json_values import from_json
from torchft_x.launch.process.devices import ALL_VARIABLES, Usable

REPLICA = "${replica_id}"
"""TorchX's macro for the replica's number, which a template still contains."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """Command, environment and directory of one replica of a role."""

    args: tuple[str, ...]
    env: dict[str, str]
    """Variables added to the keeper's own environment."""
    cwd: str | None = None


@dataclass(frozen=True, kw_only=True)
class RolePlan:
    """Plan of one role: its replicas and their restart budget."""

    name: str
    replicas: tuple[Process, ...]
    kind: str = ""
    """lighthouse, trainer or sidecar; '' for a program that isn't ours."""
    nodes: int = 1
    """Nodes per group of a trainer: replica k is node k % nodes of group k // nodes."""
    max_restarts: int = 10
    """Restarts of one replica allowed within an hour, if its kind isn't ''."""
    gpu: int = 0
    """Number of accelerators of each replica."""
    template: Process | None = None
    """Process of one more replica of a trainer, containing `REPLICA`."""

    @property
    def shares_devices(self) -> bool:
        """Whether each new replica gets accelerators of its own: they are asked for, and ``--env`` names none for all."""
        return self.gpu > 0 and self.template is not None and not any(n in self.template.env for n in ALL_VARIABLES)


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """Plan of a job: its roles, its folders, and when it ends."""

    app_id: str
    session: str
    run_dir: str
    log_dir: str
    """Folder for logs of this app, which contains ROLE/REPLICA/{stdout,stderr,combined}.log."""
    roles: tuple[RolePlan, ...]
    min_replicas: int = 1
    own_lighthouse: bool = False
    """Whether the job has a lighthouse of its own, which decides how the job ends."""
    devices: Usable | None = None
    """Accelerators of this machine for roles that share them."""
    launcher: int | None = None
    """Pid of the process with which the job ends; None if the job is detached."""

    @property
    def trainer(self) -> RolePlan | None:
        return next((role for role in self.roles if role.kind == "trainer"), None)


def folder(run_dir: str | Path) -> Path:
    """Return the keeper's own folder in the run directory."""
    return Path(run_dir, "keeper")


def write(plan: JobPlan) -> None:
    """Write the plan to the run directory. Raise `OSError` if it exists or can't be written."""
    path = _path(plan.run_dir, plan.app_id)
    make_run_dir(plan.run_dir)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as f:
        json.dump(dataclasses.asdict(plan), f)


def read(run_dir: str | Path, app_id: str) -> JobPlan:
    """Return the plan of a job. Raise `ConfigError` if it can't be read."""
    path = _path(run_dir, app_id)
    try:
        return from_json(JobPlan, json.loads(path.read_text("utf-8")))
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path} can't be read as a plan: {e}.") from None


def _path(run_dir: str | Path, app_id: str) -> Path:
    return folder(run_dir) / f"{app_id}.plan.json"
