"""What a person asks for: one fault-tolerant job, validated, before it is rendered for a scheduler (app.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from torchft_x.errors import ConfigError
from torchft_x.net import parse_address

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, kw_only=True)
class FtJob:
    """A job of `replicas` groups of `workers_per_replica` processes each.

    Raises `ConfigError` (`AddressError` for the lighthouse) naming the parameter.
    """

    script: str
    """Python file each worker runs."""
    run_dir: str
    """Absolute; shared by all processes of the job: address, token, events, logs."""
    script_args: tuple[str, ...] = ()
    """Its arguments. TorchX replaces its macros (``${app_id}`` ...) in them."""
    name: str = "ft"
    """Of the app, as the scheduler shows it."""
    replicas: int = 2
    """Replica groups."""
    workers_per_replica: int = 1
    """Processes of a group."""
    max_restarts: int = 10
    """Restarts of a group within an hour."""
    min_replicas: int = 1
    """The job can't go on with fewer groups."""
    lighthouse: str | None = None
    """Address of one that runs already; None: the job brings its own."""
    lighthouse_from: str = "--lighthouse"
    """What the address came from, for error messages."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the trainer's environment."""
    image: str = ""
    """Container image; empty: the job runs on this file system."""
    python: str = "python"
    """The interpreter inside the image."""
    h: str | None = None
    """Named resource; wins over cpu, gpu and memMB."""
    cpu: int = 2
    gpu: int = 0
    memMB: int = 4096
    """Of one group."""
    log_level: str = "info"
    """One of `LOG_LEVELS`."""

    def __post_init__(self) -> None:
        if not self.script:
            raise ConfigError("--script is empty; name the training script.")
        if not self.run_dir.startswith("/"):
            raise ConfigError(f"--run_dir {self.run_dir!r} is not an absolute path.")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", self.name):
            raise ConfigError(f"--name {self.name!r} may hold letters, digits, '-', '_' and '.' only.")
        if self.replicas < 1:
            raise ConfigError(f"--replicas is {self.replicas}; a job needs at least one replica group.")
        if self.workers_per_replica < 1:
            raise ConfigError(
                f"--workers_per_replica is {self.workers_per_replica}; a group needs at least one worker."
            )
        if not 1 <= self.min_replicas <= self.replicas:
            raise ConfigError(
                f"--min_replicas is {self.min_replicas}; it must lie between 1 and --replicas ({self.replicas})."
            )
        if self.max_restarts < 0:
            raise ConfigError(f"--max_restarts is {self.max_restarts}; it must be 0 or more.")
        for what in ("cpu", "gpu", "memMB"):
            if getattr(self, what) < 0:
                raise ConfigError(f"--{what} is {getattr(self, what)}; it must be 0 or more.")
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(f"--log_level {self.log_level!r} is not one of {', '.join(LOG_LEVELS)}.")
        if self.lighthouse is not None and parse_address(self.lighthouse, what=self.lighthouse_from).port == 0:
            raise ConfigError(f"{self.lighthouse_from} {self.lighthouse!r}: port 0 is no port to connect to.")
