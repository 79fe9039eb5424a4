"""Parameters of a fault-tolerant job, or of a lighthouse that stands alone, validated. app.py renders them for a scheduler."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchx import specs

from torchft_x import env as environment
from torchft_x.errors import ConfigError
from torchft_x.launch.job.parse import NAME, check_env, parse_addresses, parse_command, parse_resource
from torchft_x.launch.schedulers.role import Hook
from torchft_x.net import MOST

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")

DEBUG_ENV = {
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_CPP_LOG_LEVEL": "INFO",  # without it TORCH_DISTRIBUTED_DEBUG prints nothing
    "TORCH_SHOW_CPP_STACKTRACES": "1",
    "NCCL_DEBUG": "INFO",
    "PYTHONFAULTHANDLER": "1",
}
"""Variables that --debug adds for trainers and extra roles. The user's own values override them."""

_REFUSED = {
    environment.TOKEN: "schedulers show it to everybody: put the token into a file and name that with --token_file",
    environment.TOKEN_FILE: "use --token_file, which reaches the lighthouse as well",
    environment.TLS: "use --tls, which reaches the lighthouse as well",
}
"""Variables that `env` must not contain, each with the advice for the error message."""
_RESERVED = ("lighthouse", "trainer")  # names of our own roles


@dataclass(frozen=True)
class ExtraRole:
    """Program beside the trainers, such as an evaluator or a data service. It ends with the job and never decides its outcome.

    Its environment is the job's, with TORCHFT_LIGHTHOUSE, the token and TORCHFT_X_RUN_DIR. The fields are checked by
    `ft_app`, not by the constructor.
    """

    name: str
    """Name of the role, as the scheduler and the logs show it."""
    command: Sequence[str] | str
    """Program and arguments. ``python``, or a first word that ends in ``.py``, is run by the trainers' interpreter."""
    replicas: int = 1
    """Number of copies. TorchX replaces ``${replica_id}`` in the command and the environment by the copy's number."""
    max_restarts: int = 10
    """Largest number of restarts of one copy within an hour."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to the job's `env`, which they override."""
    image: str = ""
    """Container image, which must contain torchft_x; '' for the job's."""
    h: str | None = None
    """Named resource; overrides cpu, gpu and memMB."""
    cpu: int = 1
    """Number of CPUs of one copy."""
    gpu: int = 0
    """Number of GPUs of one copy."""
    memMB: int = 1024
    """MB of memory of one copy."""

    @property
    def resource(self) -> specs.Resource:
        what = f"The extra role {self.name!r}: "
        return parse_resource(cpu=self.cpu, gpu=self.gpu, memMB=self.memMB, h=self.h, what=what)

    def words(self, python: str) -> tuple[str, ...]:
        """Return the words of the command, with `python` as the job's interpreter. Raise `ConfigError` for a bad command."""
        words = parse_command(self.command, what=f"The extra role {self.name!r}")
        if words[0] == "python":
            return (python, *words[1:])
        return (python, *words) if words[0].endswith(".py") else words

    def check(self) -> None:
        """Raise `ConfigError`, with a message that names the role, if a field is wrong."""
        what = f"The extra role {self.name!r}"
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ConfigError(f"{what}: a name may hold letters, digits, '-', '_' and '.' only.")
        if self.name in _RESERVED:
            raise ConfigError(f"{what}: the job itself has a role of that name; choose another.")
        if self.replicas < 1:
            raise ConfigError(f"{what}: replicas is {self.replicas}; it must be 1 or more.")
        if self.max_restarts < 0:
            raise ConfigError(f"{what}: max_restarts is {self.max_restarts}; it must be 0 or more.")
        check_env(self.env, what=f"{what}, env", refused=_REFUSED)
        self.words("python")
        _ = self.resource


@dataclass(frozen=True, kw_only=True)
class FtJob:
    """Job of `replicas` groups of `workers_per_replica` processes each.

    Raises `ConfigError` (`AddressError` for the lighthouse), with a message that names the parameter.
    """

    script: str
    """Path of the Python file that each worker runs; '' with `module`."""
    run_dir: str
    """Absolute path of the directory that all processes of the job share: address, token, events, logs."""
    script_args: tuple[str, ...] = ()
    """Arguments of the script. TorchX replaces its macros (``${app_id}`` ...) in them."""
    module: str = ""
    """Python module that each worker runs in place of a script; in it ``import torchft`` imports torchft_x."""
    name: str = "ft"
    """Name of the app, as the scheduler shows it."""
    replicas: int = 2
    """Number of replica groups."""
    workers_per_replica: int = 1
    """Number of a group's processes, on all its nodes together."""
    workers_by_group: tuple[int, ...] = ()
    """Numbers of processes of the groups, if they differ; overrides `workers_per_replica`. Each group then has one node."""
    nodes_per_replica: int = 1
    """Number of a group's nodes, each of which is one replica of the trainer role."""
    max_restarts: int = 10
    """Largest number of restarts of a group within an hour."""
    min_replicas: int = 1
    """Least number of groups for a quorum and for a commit. The job fails when fewer are left."""
    health: str = ""
    """Shell command that fails on a host that must not be used; '' for none."""
    lighthouse: tuple[str, ...] = ()
    """Addresses of running lighthouses, one or several (docs/operate.md); () for the job's own."""
    lighthouses: int = 1
    """Number of the job's own lighthouses. One serves, the others stand by (docs/operate.md#several-lighthouses)."""
    lighthouse_from: str = "--lighthouse"
    """Name of the option or variable with the addresses, for error messages."""
    token_file: str = ""
    """File with the token, as the job's processes see it; '' if the job's own lighthouse creates it."""
    tls: str = ""
    """Value of TORCHFT_X_TLS for all of the job's processes; '' for none."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Additional variables of the trainers and of the extra roles."""
    mounts: tuple[Any, ...] = ()
    """Mounts of TorchX, for every role."""
    image: str = ""
    """Container image; '' to run the job on this file system."""
    python: str = "python"
    """Interpreter inside the image."""
    resource: specs.Resource = field(default_factory=lambda: parse_resource(cpu=2, gpu=0, memMB=4096, h=None))
    """TorchX resource of one node of a group."""
    log_level: str = "info"
    """One of `LOG_LEVELS`. With `debug` it is ``debug``."""
    log_format: str = "text"
    """``text`` or ``json`` (torchft_x.log_lines)."""
    debug: bool = False
    """Whether `DEBUG_ENV` is added."""
    extra_roles: tuple[ExtraRole, ...] = ()
    hooks: tuple[Hook, ...] = ()
    """Functions called once each with (scheduler, dry-run info), after our own adjustments of the request."""

    def __post_init__(self) -> None:
        if not (self.script or self.module):
            raise ConfigError("--script is empty; name the training script.")
        check_common(self.name, self.run_dir, self.log_level, self.log_format)
        self._check_groups()
        check_env(self.env, what="--env", refused=_REFUSED)
        if self.lighthouse:
            parse_addresses(",".join(self.lighthouse), what=self.lighthouse_from)
        self._check_lighthouses()
        if self.lighthouse and self.extra_roles:
            raise ConfigError(
                f"{self.lighthouse_from} names a lighthouse of several jobs, which can't stop the extra roles when this job "
                "ends; leave it out, so that the job brings its own, or start these programs by yourself."
            )
        seen: set[str] = set()
        for role in self.extra_roles:
            role.check()
            if role.name in seen:
                raise ConfigError(f"The extra role {role.name!r} is there twice; roles need names of their own.")
            seen.add(role.name)

    def _check_lighthouses(self) -> None:
        if not 1 <= self.lighthouses <= MOST:
            raise ConfigError(f"--lighthouses is {self.lighthouses}; it must lie between 1 and {MOST}.")
        if self.lighthouses > 1 and self.lighthouse:
            raise ConfigError(
                f"--lighthouses is {self.lighthouses}, the job's own, but {self.lighthouse_from} names "
                f"{','.join(self.lighthouse)}; give one of the two."
            )

    def _check_groups(self) -> None:
        if self.replicas < 1:
            raise ConfigError(f"--replicas is {self.replicas}; a job needs at least one replica group.")
        workers, nodes = self.workers_per_replica, self.nodes_per_replica
        if workers < 1:
            raise ConfigError(f"--workers_per_replica is {workers}; a group needs at least one worker.")
        if nodes < 1:
            raise ConfigError(f"--nodes_per_replica is {nodes}; a group needs at least one node.")
        if workers % nodes:
            raise ConfigError(
                f"--workers_per_replica is {workers}, the workers of a whole group; "
                f"it must be a multiple of --nodes_per_replica ({nodes})."
            )
        if self.workers_by_group and (nodes > 1 or workers > 1 or len(self.workers_by_group) != self.replicas):
            raise ConfigError(
                f"--islands names {len(self.workers_by_group)} groups on one node each, and --replicas is {self.replicas}, "
                f"--nodes_per_replica {nodes}, --workers_per_replica {workers}; give as many numbers as --replicas says, and "
                "leave out the other two."
            )
        if not 1 <= self.min_replicas <= self.replicas:
            raise ConfigError(
                f"--min_replicas is {self.min_replicas}; it must lie between 1 and --replicas ({self.replicas})."
            )
        if self.max_restarts < 0:
            raise ConfigError(f"--max_restarts is {self.max_restarts}; it must be 0 or more.")

    @property
    def unused_gpus(self) -> int:
        """Number of a node's accelerators that are left over if each worker uses one."""
        workers = max(self.workers_by_group or (self.workers_per_replica // self.nodes_per_replica,))
        return max(0, int(self.resource.gpu) - workers)

    @property
    def level(self) -> str:
        """Log level in effect."""
        return "debug" if self.debug else self.log_level

    @property
    def lighthouse_port(self) -> int:
        """Port of the job's own lighthouse on its own host, derived from the run directory, so that all roles agree."""
        return 29510 + zlib.crc32(self.run_dir.encode()) % 2000


def check_common(name: str, run_dir: str, log_level: str, log_format: str) -> None:
    """Raise `ConfigError` if a parameter that jobs and stand-alone lighthouses have in common is wrong."""
    if not run_dir.startswith("/"):
        raise ConfigError(f"--run_dir {run_dir!r} is not an absolute path.")
    if not NAME.fullmatch(name):
        raise ConfigError(f"--name {name!r} may hold letters, digits, '-', '_' and '.' only.")
    if len(name) > 200:  # TorchX and we add up to 24 for a folder's name, of which a file system takes 255
        raise ConfigError(f"--name has {len(name)} characters; 200 are allowed.")
    if log_level not in LOG_LEVELS:
        raise ConfigError(f"--log_level {log_level!r} is not one of {', '.join(LOG_LEVELS)}.")
    if log_format not in LOG_FORMATS:
        raise ConfigError(f"--log_format {log_format!r} is not one of {', '.join(LOG_FORMATS)}.")


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
