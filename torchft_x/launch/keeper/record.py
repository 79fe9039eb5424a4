"""What anybody may know of a job of this machine: ``job.json`` in its run directory. The keeper writes it, whole, at each change.

Readers believe nothing: the file may be torn, another user's, of another job, or of a keeper that was killed.
docs/run_directory.md lists its fields.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torchft_x.errors import TorchftXError
from torchft_x.launch.keeper.plan import folder

T = TypeVar("T")

FORMAT = 1
STATES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED")
"""Of a job, and of a replica, in TorchX's words."""
OVER = ("SUCCEEDED", "FAILED", "CANCELLED")
_LIMIT = 1 << 24  # bytes; thousands of replicas


class RecordError(TorchftXError, ValueError):
    """What is known of a job can't be read. `missing`: there is nothing."""

    def __init__(self, sentence: str, *, missing: bool = False) -> None:
        super().__init__(sentence)
        self.missing = missing


@dataclass(frozen=True, kw_only=True)
class Pid:
    """A process that can't be mistaken for another one with its number."""

    pid: int
    ticks: int
    """When it was started, in the kernel's clock ticks."""

    @property
    def alive(self) -> bool:
        """On the host where it runs."""
        return ticks_of(self.pid) == self.ticks


@dataclass(frozen=True, kw_only=True)
class ReplicaRecord:
    id: int
    state: str
    command: tuple[str, ...]
    group: str = ""
    """Of a trainer."""
    node: int = 0
    process: Pid | None = None
    """None: none runs at present."""
    starts: int = 0
    """How often its process was started again by the keeper."""
    restarts: int = 0
    """How often that process has started again what it keeps running, as it says: workers, the lighthouse's server."""
    last_exit: str = ""
    """Why it, or what it keeps running, was started again last, or how it has ended."""
    code: int | None = None
    """Exit code, or -signal; None: it runs."""


@dataclass(frozen=True, kw_only=True)
class RoleRecord:
    name: str
    kind: str
    replicas: tuple[ReplicaRecord, ...]


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    app_id: str
    session: str
    state: str
    reason: str
    """A sentence: why it is in that state."""
    run_dir: str
    log_dir: str
    host: str
    boot: str
    """Of the host, as the kernel names it."""
    keeper: Pid
    launcher: int | None
    """None: the job is detached."""
    created: float
    updated: float
    """Unix seconds."""
    groups: int
    """How many are wanted; 0: the job has none."""
    roles: tuple[RoleRecord, ...]
    answer: tuple[str, str] = ("", "")
    """To the last request for another number of groups: the request's name, and why it was refused."""

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def restarts(self) -> int:
        return sum(replica.starts + replica.restarts for role in self.roles for replica in role.replicas)


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def ticks_of(pid: int) -> int | None:
    """None: there is no such process, or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def this_process(pid: int) -> Pid:
    return Pid(pid=pid, ticks=ticks_of(pid) or 0)


def path_of(run_dir: str | Path, app_id: str | None = None) -> Path:
    """Of the run directory's newest job; with `app_id` of an earlier one there."""
    return Path(run_dir, "job.json") if app_id is None else folder(run_dir) / f"{app_id}.job.json"


def write(record: JobRecord) -> None:
    """Whole, or not at all. Raises OSError."""
    path = path_of(record.run_dir)
    other = path.with_name(f".job.json.{os.getpid()}")
    other.write_text(json.dumps({"format": FORMAT, **dataclasses.asdict(record)}, indent=1) + "\n", "utf-8")
    os.replace(other, path)


def read(run_dir: str | Path, app_id: str | None = None) -> JobRecord:
    """The newest job's, or that job's. One whose keeper has died without a word is FAILED. Raises `RecordError`."""
    found = _settled(_load(path_of(run_dir)))
    if app_id is None or found.app_id == app_id:
        return found
    return _settled(_load(path_of(run_dir, app_id)))


def _load(path: Path) -> JobRecord:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a named pipe would be waited for
        with os.fdopen(fd, "rb") as f:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise RecordError(f"{path} is no file.")
            text = f.read(_LIMIT)
    except (FileNotFoundError, NotADirectoryError):
        raise RecordError(
            f"There is no {path}: no job of local_ft was started in that run directory, or it was removed.",
            missing=True,
        ) from None
    except OSError as e:
        raise RecordError(f"{path} can't be read ({e.strerror}).") from None
    try:
        return _job(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise RecordError(f"{path} is torn, or not a job's: nothing can be said of it.") from None


def _settled(record: JobRecord) -> JobRecord:
    if record.over or record.host != socket.gethostname():  # of another host nothing else can be known
        return record
    if record.boot == boot_id() and record.keeper.alive:
        return record
    log = folder(record.run_dir) / f"{record.app_id}.log"
    reason = f"The process that kept the job ({record.keeper.pid}) is gone without a word; its own is in {log}."
    return dataclasses.replace(record, state="FAILED", reason=reason)


def _job(found: dict[str, Any]) -> JobRecord:
    """Raises ValueError, TypeError or KeyError for what `write` hasn't written."""
    if found.pop("format") != FORMAT:
        raise ValueError("another format")
    record = _made(
        JobRecord,
        found,
        keeper=_made(Pid, found["keeper"]),
        roles=tuple(_role(role) for role in found["roles"]),
        answer=(str(found["answer"][0]), str(found["answer"][1])),
    )
    if record.state not in STATES:
        raise ValueError(record.state)
    return record


def _role(found: dict[str, Any]) -> RoleRecord:
    return _made(RoleRecord, found, replicas=tuple(_replica(r) for r in found["replicas"]))


def _replica(found: dict[str, Any]) -> ReplicaRecord:
    process = None if found["process"] is None else _made(Pid, found["process"])
    replica = _made(ReplicaRecord, found, process=process, command=tuple(map(str, found["command"])))
    if replica.state not in STATES:
        raise ValueError(replica.state)
    return replica


_TYPES: dict[str, Any] = {"str": str, "int": int, "float": (int, float), "int | None": (int, type(None))}


def _made(kind: type[T], found: dict[str, Any], **made: Any) -> T:
    """An instance whose plain fields have the types that they should have. Fields of a newer version are left out."""
    values = dict(made)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # they are dataclasses
        if field.name not in made:
            values[field.name] = found[field.name]
            if isinstance(found[field.name], bool) or not isinstance(found[field.name], _TYPES[str(field.type)]):
                raise TypeError(field.name)
    return kind(**values)
