"""Parameters of a stand-alone lighthouse, validated. app.py renders them for a scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from torchx import specs

from torchft_x.errors import ConfigError
from torchft_x.launch.job.job import check_common
from torchft_x.launch.job.parse import parse_resource


@dataclass(frozen=True, kw_only=True)
class FtLighthouse:
    """Stand-alone lighthouse for other jobs. Raises `ConfigError`, with a message that names the parameter."""

    name: str = "lighthouse"
    min_replicas: int = 1
    """Least number of groups for a quorum."""
    lease_dir: str = ""
    """Absolute path of the directory that several lighthouses share; '' if this is the only one."""
    state_file: str = ""
    """Absolute path of the file for the issued quorums; '' for a file in `run_dir`, if there is one."""
    port: int = 29510
    """Port; 0 for any free one."""
    join_timeout_ms: int = 60000
    heartbeat_timeout_ms: int = 0
    """Silence, in milliseconds, after which a member is suspected; 0 for limits by the kind of silence."""
    quorum_tick_ms: int = 100
    token_file: str = ""
    """File with the token that every caller needs."""
    tls: str = ""
    """Value of TORCHFT_X_TLS; '' for none."""
    run_dir: str = ""
    """Absolute path of the run directory; '' for no events, no address file and no token of its own."""
    image: str = ""
    python: str = "python"
    h: str | None = None
    cpu: int = 1
    memMB: int = 512
    log_level: str = "info"
    log_format: str = "text"

    def __post_init__(self) -> None:
        check_common(self.name, self.run_dir or "/", self.log_level, self.log_format)
        if self.min_replicas < 1:
            raise ConfigError(f"--min_replicas is {self.min_replicas}; it must be 1 or more.")
        if self.lease_dir and self.state_file:
            raise ConfigError(
                "--lease_dir and --state_file: one of several lighthouses writes into the directory; give one."
            )
        if self.lease_dir and self.port == 0:
            raise ConfigError(
                "--port 0 with --lease_dir: the address of one of several must not change; choose a port."
            )
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port is {self.port}; it must lie between 0 (any free one) and 65535.")
        if self.heartbeat_timeout_ms < 0:
            raise ConfigError(
                f"--heartbeat_timeout_ms is {self.heartbeat_timeout_ms}; it must be a positive number of milliseconds, or "
                "0 for what fits the kind of silence."
            )
        for what in ("join_timeout_ms", "quorum_tick_ms"):
            if getattr(self, what) < 1:
                raise ConfigError(f"--{what} is {getattr(self, what)}; it must be a positive number of milliseconds.")
        _ = self.resource

    @property
    def resource(self) -> specs.Resource:
        return parse_resource(cpu=self.cpu, gpu=0, memMB=self.memMB, h=self.h)
