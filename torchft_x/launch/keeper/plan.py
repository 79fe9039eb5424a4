"""What a keeper runs. The launcher writes it into the run directory, mode 0600 (it holds --env), the keeper reads it once."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchft_x.address_files import make_run_dir
from torchft_x.errors import ConfigError

REPLICA = "${replica_id}"
"""TorchX's macro, left in a template."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """How one replica of a role is started."""

    args: tuple[str, ...]
    env: dict[str, str]
    """Added to the keeper's own."""
    cwd: str | None = None


@dataclass(frozen=True, kw_only=True)
class RolePlan:
    name: str
    replicas: tuple[Process, ...]
    kind: str = ""
    """lighthouse, trainer or sidecar; empty: a program that isn't ours."""
    nodes: int = 1
    """Of a trainer: replica k is node k % nodes of group k // nodes."""
    max_restarts: int = 10
    """Of one replica within an hour, if it is ours."""
    gpu: int = 0
    """Accelerators of each replica."""
    template: Process | None = None
    """Of a trainer: how one more is started, with `REPLICA` in it."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    app_id: str
    session: str
    run_dir: str
    log_dir: str
    """Of this app; below it ROLE/REPLICA/{stdout,stderr,combined}.log."""
    roles: tuple[RolePlan, ...]
    min_replicas: int = 1
    own_lighthouse: bool = False
    """Whether the job brings its own, which decides how it ends."""
    launcher: int | None = None
    """Pid with which the job ends; None: it is detached."""

    @property
    def trainer(self) -> RolePlan | None:
        return next((role for role in self.roles if role.kind == "trainer"), None)


def folder(run_dir: str | Path) -> Path:
    """The keeper's own, in the run directory."""
    return Path(run_dir, "keeper")


def write(plan: Plan) -> None:
    """Raises OSError."""
    path = _path(plan.run_dir, plan.app_id)
    make_run_dir(plan.run_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as f:
        json.dump(dataclasses.asdict(plan), f)


def read(run_dir: str | Path, app_id: str) -> Plan:
    """Raises `ConfigError`."""
    path = _path(run_dir, app_id)
    try:
        found = json.loads(path.read_text("utf-8"))
        return Plan(**{**found, "roles": tuple(_role(r) for r in found["roles"])})
    except (OSError, ValueError, TypeError, KeyError) as e:
        raise ConfigError(f"{path} can't be read as a plan: {e}.") from None


def _path(run_dir: str | Path, app_id: str) -> Path:
    return folder(run_dir) / f"{app_id}.plan.json"


def _role(found: dict[str, Any]) -> RolePlan:
    template = found["template"]
    replicas = tuple(_process(p) for p in found["replicas"])
    return RolePlan(**{**found, "replicas": replicas, "template": _process(template) if template else None})


def _process(found: dict[str, Any]) -> Process:
    return Process(**{**found, "args": tuple(found["args"])})
