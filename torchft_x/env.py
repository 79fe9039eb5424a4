"""Environment variables. No other module reads os.environ. An argument overrides a variable, and a variable the default.

Every function accepts the mapping to read (``os.environ`` unless given), so that tests need no patching.
Variables of the peer (torchft) keep its meaning; ours start with ``TORCHFT_X_``.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import nan

from torchft_x.errors import ConfigError

LIGHTHOUSE = "TORCHFT_LIGHTHOUSE"  # address of the lighthouse, or of several with commas
MANAGER_PORT = "TORCHFT_MANAGER_PORT"  # port of a group's server; unset or 0: a free one
TIMEOUT = "TORCHFT_TIMEOUT_SEC"  # seconds, at most, for a reduction, a heal or a vote
QUORUM_TIMEOUT = "TORCHFT_QUORUM_TIMEOUT_SEC"  # seconds, at most, for a quorum
STRAGGLER_TIMEOUT = "TORCHFT_X_STRAGGLER_TIMEOUT"  # seconds by which another group may be later than the own one
CONNECT_TIMEOUT = "TORCHFT_CONNECT_TIMEOUT_SEC"  # seconds, at most, to find store, group server and lighthouse
QUORUM_RETRIES = "TORCHFT_QUORUM_RETRIES"  # without effect; the group server reconnects by itself
USE_BUCKETIZATION = "TORCHFT_USE_BUCKETIZATION"  # for DiLoCo; exactly "True" turns it on, anything else off
REPLICA_GROUP_ID = "REPLICA_GROUP_ID"  # number or name of this group, stable over restarts
NUM_REPLICA_GROUPS = "NUM_REPLICA_GROUPS"  # number of groups of the job, present or not
_PYTHONPATH = "PYTHONPATH"  # Python's own

# Variables of torchrun, all about one replica group
RANK = "RANK"  # rank in the group
WORLD_SIZE = "WORLD_SIZE"  # number of ranks of the group
LOCAL_RANK = "LOCAL_RANK"  # rank on this host
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"  # number of ranks on this host
MASTER_ADDR = "MASTER_ADDR"  # host of the group's store
MASTER_PORT = "MASTER_PORT"  # port of the group's store
USE_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # "True": torchrun itself hosts the store at MASTER_ADDR:MASTER_PORT
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # JSON file with the error of a worker, or of a process of a local scheduler
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"  # prefix of keys, because torchrun keeps the store over its restarts

# Variables of ours (TORCHFT_X_), of the peer and of platforms
TOKEN = "TORCHFT_X_TOKEN"  # the run's token itself
TOKEN_FILE = "TORCHFT_X_TOKEN_FILE"  # path of a file with the run's token
TLS = "TORCHFT_X_TLS"  # on, control (tensors in clear) or off; for certificates of one's own: on,cert=PATH,key=PATH,ca=PATH
HTTP_BIND = "TORCHFT_X_HTTP_BIND"  # for a lighthouse: address of its page, or "off"
WATCHDOG_TIMEOUT = "TORCHFT_WATCHDOG_TIMEOUT_SEC"  # for torchft_x.compat.futures: longest time of a callback
EVENTS = "TORCHFT_X_EVENTS"  # "stdout": also print each event as a line with a JSON object, for collectors of logs
RUN_DIR = "TORCHFT_X_RUN_DIR"  # shared run directory: lighthouse address, token, events
ADVERTISE_HOST = "TORCHFT_X_ADVERTISE_HOST"  # name or address by which others reach this host
ADVERTISE_INTERFACE = "TORCHFT_X_ADVERTISE_INTERFACE"  # network interface that has that address
ATTEMPT = "TORCHFT_X_ATTEMPT"  # from a supervisor to the programs of an attempt: `AttemptEnv`, as a JSON object
MIN_REPLICAS = "TORCHFT_X_MIN_REPLICAS"  # least number of groups for a quorum and for a commit
FLIGHT_RECORDER = "TORCHFT_X_FLIGHT_RECORDER"  # folder for records of an aborted group; "1": in the run directory
_FLIGHT_ON_ABORT = "TORCHFT_TRIGGER_FR_ON_ABORT"  # the peer's; "true" is equivalent to FLIGHT_RECORDER "1"
LIGHTHOUSE_AT = "TORCHFT_X_LIGHTHOUSE_AT"  # VARIABLE:PORT, where VARIABLE holds the host of the job's first role
FAULT_TOLERANCE = "TORCHFT_X_FAULT_TOLERANCE"  # from a component to the script: keys of [fault_tolerance], as JSON
# "0": nothing is collected from trainers that hang or die. "1": trainers also run torch's own worker server.
WORKER_SERVER = "TORCHFT_X_WORKER_SERVER"
HANG_TIMEOUT = "TORCHFT_X_HANG_TIMEOUT"  # for a supervisor: seconds without a step after which it restarts its group
MEMORY = "TORCHFT_X_MEMORY"  # for a supervisor: share of the host's memory for copies of its workers' states; 0: none
NOTICE = "TORCHFT_X_NOTICE"  # for a supervisor: seconds between its SIGTERM and SIGKILL, as its platform sets them
WARM = "TORCHFT_X_WARM"  # "0": no attempt of a group is forked from a pre-imported process
WARM_IMPORTS = "TORCHFT_X_WARM_IMPORTS"  # imports of that process besides torch, with commas; unset: the script's own
STATE_HOME = "XDG_STATE_HOME"  # folder for programs' state; ~/.local/state if unset
SLURM_JOB_ID = "SLURM_JOB_ID"  # set by Slurm: number of the job
SLURM_NODE_NAME = "SLURMD_NODENAME"  # set by Slurm in all processes of a job: this node
SLURM_LAUNCH_ADDRESS = "SLURM_LAUNCH_NODE_IPADDR"  # set by srun in its tasks: address of the node on which srun runs
CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"  # NVIDIA's, understood by AMD's HIP as well
HIP_VISIBLE_DEVICES = "HIP_VISIBLE_DEVICES"  # AMD's
ROCR_VISIBLE_DEVICES = "ROCR_VISIBLE_DEVICES"  # AMD's, one layer below: HIP counts only devices that this one leaves
ZE_AFFINITY_MASK = "ZE_AFFINITY_MASK"  # Intel's
KUBECONFIG = "KUBECONFIG"  # Kubernetes': its configuration files
TORCHX_JOB_ID = "TORCHX_JOB_ID"  # set by TorchX: <scheduler>://<session>/<app id>
TIME_SCALE = "TORCHFT_X_TIME_SCALE"  # tests only: factor for the times of torchft_x.timing and the tests' deadlines
LOG_LEVEL = "TORCHFT_X_LOG_LEVEL"  # debug, info, warning or error
LOG_FORMAT = "TORCHFT_X_LOG_FORMAT"  # format of our processes' output: "text", or "json" for one object a line
TORCHX_CONFIG = "TORCHXCONFIG"  # TorchX's: the only configuration file it reads, if set
NCCL_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"  # PyTorch's: its own watchdog's reaction to an NCCL error
_NCCL_NONBLOCKING = "TORCH_NCCL_NONBLOCKING_TIMEOUT"  # PyTorch's: longest call of a non-blocking communicator, seconds
_HTTPS = "https://"
_GRPC_VERBOSITY = "GRPC_VERBOSITY"
_GRPC_FORK = "GRPC_ENABLE_FORK_SUPPORT"
_GRPC_EXPERIMENTS = "GRPC_EXPERIMENTS"
_GRPC_NEWEST = (1, 85)  # newest version whose experiments' names `prepare_lighthouse` knows


def everything() -> dict[str, str]:
    """Return a copy of the whole environment, for a child process."""
    return dict(os.environ)


def with_python_path(folder: str) -> dict[str, str]:
    """Return a copy of the whole environment with `folder` first in PYTHONPATH."""
    folders = [folder, *(f for f in os.environ.get(_PYTHONPATH, "").split(os.pathsep) if f not in ("", folder))]
    return {**os.environ, _PYTHONPATH: os.pathsep.join(folders)}


def set_default(name: str, value: str) -> None:
    """Set a variable of this process unless it is set already."""
    os.environ.setdefault(name, value)


def become(environ: Mapping[str, str]) -> None:
    """Replace the whole environment of this process, which was forked from one with another environment."""
    os.environ.clear()
    os.environ.update(environ)


def leave_outer_job() -> None:
    """Remove the variable that supervisors set for programs only, if a program started us as part of its own job."""
    os.environ.pop(ATTEMPT, None)


def is_local_job(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether a local scheduler of TorchX (``local_cwd`` and the like) started us outside a container."""
    job = read(TORCHX_JOB_ID, "", environ) or ""
    return job.startswith("local") and not job.startswith("local_docker")


def read(name: str, default: str | None = None, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the value of a variable, or `default` if it is unset or empty."""
    value = (os.environ if environ is None else environ).get(name, "")
    return value if value != "" else default


def read_int(name: str, default: int | None = None, environ: Mapping[str, str] | None = None) -> int | None:
    value = read(name, None, environ)
    if value is None:
        return default
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{name}={value!r} is not a whole number; set it to one or unset it.") from None


def read_seconds(name: str, default: float | None = None, environ: Mapping[str, str] | None = None) -> float | None:
    value = read(name, None, environ)
    if value is None:
        return default
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"{name}={value!r} is not a positive number of seconds; set it to one or unset it.")
    return seconds


def read_lighthouse_at(environ: Mapping[str, str] | None = None) -> tuple[str, int] | None:
    """Return the variable with the host of the job's own lighthouse, and its port; None if the scheduler names none."""
    value = read(LIGHTHOUSE_AT, None, environ)
    if value is None:
        return None
    variable, _, port = value.rpartition(":")
    if not variable or not port.isdecimal():
        raise ConfigError(f"{LIGHTHOUSE_AT}={value!r} is no VARIABLE:PORT; set it to one or unset it.")
    return variable, int(port)


@dataclass(frozen=True, kw_only=True)
class AttemptEnv:
    """Facts that a supervisor passes to the programs of an attempt."""

    number: int = 0
    """Number of this start of the group or program. It continues when the supervisor is replaced."""
    token: str = ""
    """Random name of a group's attempt, which the supervisor's exit report repeats; '' for a sidecar."""
    folder: str = ""
    """Private folder on this host for a trainer's status file and socket; '' for none."""
    memory_slots: str = ""
    """The supervisor's memory for copies of its workers' states (`CheckpointMemory.setting`); '' if there is none."""
    own_gpus: bool = False
    """Whether the group has GPUs of its own (``--gpu``); otherwise groups may share them."""
    lighthouse_file: str = ""
    """File with the new address of the job's own lighthouse if it moves; '' if it can't move."""

    def __str__(self) -> str:
        return json.dumps(asdict(self))


def read_attempt(environ: Mapping[str, str] | None = None) -> AttemptEnv:
    """Return the facts about this process's attempt; the defaults without a supervisor. Raise `ConfigError` for others."""
    value = read(ATTEMPT, None, environ)
    try:
        return AttemptEnv() if value is None else AttemptEnv(**json.loads(value))
    except (ValueError, TypeError):
        raise ConfigError(f"{ATTEMPT}={value!r} is not from a supervisor of this version; unset it.") from None


def new_token() -> str:
    """Return a new random token of 256 bits."""
    return secrets.token_urlsafe(32)


def read_token(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the run's token: TORCHFT_X_TOKEN, else the content of TORCHFT_X_TOKEN_FILE, else None (no token)."""
    token = read(TOKEN, None, environ)
    if token is not None:
        return token.strip()
    path = read(TOKEN_FILE, None, environ)
    return None if path is None else read_token_file(path, f"{TOKEN_FILE}={path}")


def read_token_file(path: str, what: str) -> str:
    """Return the token in a file that no other user can have read or created.

    Raise `ConfigError`, with a message that starts with `what`, for any other file.
    """
    try:
        with open(path, encoding="utf-8", opener=without_waiting) as f:
            _check_private(os.fstat(f.fileno()), path, what)
            token = f.read(4096).strip()
    except OSError as e:
        raise ConfigError(f"{what}: the token can't be read ({e.strerror}).") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{what}: the file is not text; write the run's token into it.") from None
    if not token:
        raise ConfigError(f"{what}: the file is empty; write the run's token into it.")
    return token


def read_tls(environ: Mapping[str, str] | None = None) -> str:
    """Return TORCHFT_X_TLS without "off"; if it is unset, "on" if TORCHFT_LIGHTHOUSE begins with https://; else ''."""
    by_address = "on" if (read(LIGHTHOUSE, "", environ) or "").strip().startswith(_HTTPS) else ""
    value = read(TLS, by_address, environ) or ""
    return "" if value == "off" else value


def enable_tls_if_https(lighthouse: str) -> None:
    """Turn TLS on, in this process and its children, if the run's lighthouse has an https:// address."""
    if lighthouse.strip().startswith(_HTTPS):
        set_default(TLS, "on")


def time_scale(environ: Mapping[str, str] | None = None) -> float:
    """Return the factor for the times of `torchft_x.timing`, 1 unless tests set it. Raise `ConfigError` for a bad value."""
    value = read(TIME_SCALE, None, environ)
    try:
        scale = 1.0 if value is None else float(value)
    except ValueError:
        scale = nan
    if not 0.1 <= scale <= 100:
        raise ConfigError(
            f"{TIME_SCALE} is {value!r}; it multiplies all times of torchft_x and is meant for tests only: unset it, or "
            "give a number between 0.1 and 100."
        )
    return scale


def wants_news(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether a trainer prints losses and returns of groups: at all log levels but warning and error."""
    return (read(LOG_LEVEL, "info", environ) or "").lower() not in ("warning", "error")


def wants_json(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether our processes print JSON, for a collector of logs."""
    return read(LOG_FORMAT, "text", environ) == "json"


def without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a named pipe would block


def _check_private(found: os.stat_result, path: str, what: str) -> None:
    """Raise `ConfigError` if other users may read or write the file, or if it belongs to one of them.

    A file of root, such as a mounted secret, may be readable for its group.
    """
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{what}: that is no file; name one that holds the run's token.")
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"{what}: the file belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}; whoever made it "
            "knows the token. Make one of your own: install -m 600 /dev/null FILE, and write the run's token into it."
        )
    others = 0o077 if found.st_uid == os.geteuid() else 0o037
    if found.st_mode & others:
        raise ConfigError(
            f"{what}: the file's mode is {stat.S_IMODE(found.st_mode):04o}, so that others may know or change the token: "
            f"chmod 600 {path}, and if they may have read it, write a new token."
        )


def flight_folder(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the folder for flight recorder files, or None if none are written."""
    value = read(FLIGHT_RECORDER, None, environ)
    if value is None and read(_FLIGHT_ON_ABORT, "false", environ) == "true":
        value = "1"
    if value in (None, "0"):
        return None
    run_dir = read(RUN_DIR, None, environ)
    return value if value != "1" else None if run_dir is None else os.path.join(run_dir, "flight")


def prepare_grpc() -> bool:
    """Set the variables that gRPC reads when loaded, unless the user has. Return whether that for forks was set here.

    gRPC's messages (a connection ended, a fork happened) are kept off stderr. Its fork handlers are off: with a server
    in the process they crash about every third forked child (a DataLoader's worker), which never uses gRPC anyway.
    """
    # With TLS each client of another run would add a line.
    os.environ.setdefault(_GRPC_VERBOSITY, "NONE" if read_tls() else "ERROR")
    made_here = _GRPC_FORK not in os.environ
    os.environ.setdefault(_GRPC_FORK, "0")
    return made_here


def prepare_lighthouse(environ: dict[str, str], grpc_version: str) -> None:
    """Set gRPC's experiments for a process that is only a lighthouse, unless the user has set them.

    gRPC's newer listener passes received data between threads once more than the older one. That is 0.1 ms of a quorum
    change, which takes 1.4 ms in all. A version that does not know the name complains on stderr.
    """
    known = tuple(int(n) for n in grpc_version.split(".")[:2] if n.isdigit())
    if known <= _GRPC_NEWEST:
        environ.setdefault(_GRPC_EXPERIMENTS, "-event_engine_listener")


def prepare_nccl(timeout: float) -> str | None:
    """Set PyTorch's variables for NCCL, which it reads when its first group is made, unless the user has set them.

    PyTorch's watchdog must abort the communicators, which releases the other ranks, but not end the process, its default.
    `timeout` is in seconds. Return a warning, one sentence, if the user's setting ends the process.
    """
    os.environ.setdefault(_NCCL_NONBLOCKING, str(max(int(timeout), 1)))
    handling = os.environ.setdefault(NCCL_ERROR_HANDLING, "2")
    if handling in ("0", "2"):
        return None
    return (
        f"{NCCL_ERROR_HANDLING}={handling}: PyTorch will end this process at the first NCCL error; unset it, so that the "
        "next quorum can repair it."
    )
