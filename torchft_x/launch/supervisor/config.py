"""Settings of a supervisor, and what it starts a group's workers with: their environment, and the warm parent.

The warm parent may run before the first attempt, so this module avoids the supervisors' imports, which take longer than
everything here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import site
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torchft_x
from torchft_x import env
from torchft_x.address_files import make_run_dir
from torchft_x.errors import ConfigError
from torchft_x.launch.process.environment import package_root, tuned, with_package
from torchft_x.launch.process.restarts import RestartRules
from torchft_x.launch.workers.warm_client import WarmParent
from torchft_x.launch.workers.warm_rules import why_never
from torchft_x.timing import TIMING

if TYPE_CHECKING:
    from torchft_x.launch.supervisor.locate import FoundLighthouse


@dataclass(frozen=True, kw_only=True)
class LauncherOptions:
    """Options that a launcher or scheduler adds to the command of a supervisor, which it starts, watches and restarts."""

    launcher_pid: int | None = None
    no_restart_code: int | None = None
    attempts_file: Path | None = None
    fence: tuple[str, str] | None = None
    last_words: str | None = None
    alive: Path | None = None


def add_launcher_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("options that a launcher or scheduler adds")
    group.add_argument("--launcher_pid", type=int, metavar="PID", help="process with which this one ends")
    group.add_argument("--no_restart_code", type=int, metavar="CODE", help="exit code of a failure that is final")
    group.add_argument("--attempts_file", type=Path, metavar="FILE", help="go on from this report, and write it")
    group.add_argument("--fence", nargs=2, metavar=("FILE", "NAME"), help="end when FILE names a newer start")
    group.add_argument("--last_words", metavar="FILE", help="write the reason of the end here")
    group.add_argument("--alive", type=Path, metavar="FILE", help="touch this file regularly")


def launcher_options(args: argparse.Namespace) -> LauncherOptions:
    return LauncherOptions(**{field.name: getattr(args, field.name) for field in fields(LauncherOptions)})


@dataclass(frozen=True, kw_only=True)
class BaseConfig:
    """Settings common to all supervisors."""

    command: tuple[str, ...] = ()
    """Script or program, and its arguments."""
    run_dir: Path | None = None
    """Directory shared by the job. With None no files are written, and the lighthouse's address must be given."""
    lighthouse: str | None = None
    """Address of a lighthouse outside the job; None for the one named in the run directory."""
    launcher: LauncherOptions = LauncherOptions()
    rules: RestartRules = RestartRules()
    """Restart budget and back-off."""
    grace: float = TIMING.stop_grace
    """Seconds between SIGTERM and SIGKILL when the processes are told to stop."""
    notice: float = TIMING.notice
    """Seconds between the scheduler's or launcher's request to stop and its SIGKILL. A process that reports that it saves its
    last step may use them, beyond `grace`."""
    drain_grace: float = TIMING.drain_grace
    """Seconds that a drained group has to leave at a step boundary, and perhaps to save a checkpoint, before SIGKILL."""
    find_timeout: float = 300.0
    """Seconds to wait at the start for the lighthouse, and for a session with it."""
    local: bool = False
    """Whether all processes of the job run on this host, started by a local launcher."""

    @property
    def whole(self) -> str:
        """Name, for people, of the group or program that is kept running."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Name, for people, of the part of `whole` that this supervisor runs."""
        return self.whole


@dataclass(frozen=True, kw_only=True)
class SupervisorConfig(BaseConfig):
    """Settings of a group's supervisor on one node. Raises `ConfigError` naming the field that is wrong."""

    group: str
    """Group id (REPLICA_GROUP_ID)."""
    groups: int
    """Number of groups in the job (NUM_REPLICA_GROUPS)."""
    workers: int = 1
    """Processes of the group, on all its nodes."""
    node: int = 0
    """Index of this node in the group, from 0."""
    nodes: int = 1
    """Number of the group's nodes, each with a supervisor."""
    patience: float = 3600.0
    """Seconds to wait for the group's other nodes before the group is given up."""
    hang_timeout: float | None = None
    """Seconds without a step after which an attempt is killed; None to decide by evidence (launch/process/hangs.py)."""
    memory: float = 0.0
    """Largest fraction of the host's memory, from 0 to 1, that all groups on it may take together for copies of their states.
    The copies outlive the workers; with 0 there are none."""
    health: str = ""
    """Shell command that fails on a host that must not run the group; '' for none."""
    own_gpus: bool = False
    """Whether the group has GPUs of its own on each node, and shares none with other groups."""
    warm_after: float = TIMING.warm_after
    """Seconds into an attempt at which the warm parent imports the modules that only later attempts need. Where the
    first attempt
    can't be forked from it, the warm parent is started at that time."""

    def __post_init__(self) -> None:
        if not self.command:
            raise ConfigError("No script given: name it after --, as in `torchft_x supervise --group 0 -- train.py`.")
        if self.workers < 1:
            raise ConfigError(f"workers is {self.workers}, a group needs at least one.")
        if self.hang_timeout is not None and not self.hang_timeout > 0:
            raise ConfigError(f"hang_timeout is {self.hang_timeout:g}; it must be a positive number of seconds.")
        if not 0 <= self.memory <= 1:
            raise ConfigError(f"memory is {self.memory:g}; it is a part of the host's memory, from 0 to 1.")
        if self.groups < 1:
            raise ConfigError(f"groups is {self.groups}, a job needs at least one.")
        if not 0 <= self.node < self.nodes:
            raise ConfigError(f"node is {self.node} of {self.nodes} nodes; they are counted from 0.")
        if self.workers % self.nodes:
            raise ConfigError(
                f"workers is {self.workers}, the group's total, and nodes is {self.nodes}: each node must get the same number."
            )

    @property
    def whole(self) -> str:
        return f"group {self.group}"

    @property
    def name(self) -> str:
        return self.whole if self.nodes == 1 else f"node {self.node} of group {self.group}"

    @property
    def file_name(self) -> str:
        """Prefix of the names of the group's files."""
        return f"group-{self.group.replace('/', '_')}"


def groups_here(config: SupervisorConfig) -> int:
    """Return the number of groups, or nodes of groups, that share this host."""
    return config.groups * config.nodes if config.local else 1


def attempt_environment(
    config: BaseConfig, environ: Mapping[str, str], attempt: env.AttemptEnv, found: FoundLighthouse | None, host: str
) -> dict[str, str]:
    """Return the environment of a job's program in an attempt, which others reach by `host`. It finds the lighthouse there."""
    out = with_package(environ, own_package_root())
    out[env.ATTEMPT] = str(attempt)
    out[env.LIGHTHOUSE] = "" if found is None else found.url
    out[env.RUN_DIR] = str(config.run_dir or "")
    out[env.ADVERTISE_HOST] = host
    if found is not None and found.token_file is not None:
        out[env.TOKEN_FILE] = found.token_file
    out.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # gRPC's fork handlers crash forked children (DataLoader workers)
    return out


def trainer_environment(
    config: SupervisorConfig,
    environ: Mapping[str, str],
    attempt: env.AttemptEnv | None = None,
    found: FoundLighthouse | None = None,
    host: str = "",
) -> dict[str, str]:
    """Return `attempt_environment` for the group's workers. By default, return what is known before an attempt."""
    attempt = attempt or env.AttemptEnv()
    if env.read(env.WORKER_SERVER, None, environ) == "0":
        attempt = replace(attempt, folder="")
    out = attempt_environment(config, environ, attempt, found, host)
    out[env.REPLICA_GROUP_ID] = config.group
    out[env.NUM_REPLICA_GROUPS] = str(config.groups)
    return tuned(out, len(os.sched_getaffinity(0)) // (config.workers // config.nodes * groups_here(config)))


def start_warm_parent(config: SupervisorConfig) -> WarmParent:
    """Start the group's warm parent and return it, before this process imports the supervisor.

    A first attempt waits for the warm parent's imports, so they begin before the supervisor's own.
    """
    environ = env.everything()
    name = config.file_name if config.nodes == 1 else f"{config.file_name}-node-{config.node}"
    if config.run_dir is not None:
        with contextlib.suppress(OSError):  # the supervisor reports this error later
            make_run_dir(config.run_dir)
    log = None if config.run_dir is None else config.run_dir / "logs" / f"{name}.warm.log"
    warm = WarmParent(why_never(environ), config.command, log, config.warm_after)
    warm.start_early(trainer_environment(config, environ))
    return warm


def own_package_root() -> str | None:
    """Return the folder that a bare clone must put on PYTHONPATH, or None if Python finds the package anyway."""
    return package_root(torchft_x.__file__, (*site.getsitepackages(), site.getusersitepackages()))
