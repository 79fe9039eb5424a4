"""Public record of a job of this machine: ``job.json`` in its run directory, replaced by the keeper at each change.

Readers trust nothing in it: the file may be torn, another user's, another job's, or left by a keeper that was killed.
docs/operate.md#files-of-a-run lists its fields.
"""

from __future__ import annotations

import dataclasses
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchft_x.atomic_file import replace_file
from torchft_x.json_values import from_json
from torchft_x.launch.job.states import OVER, STATES, read_state
from torchft_x.launch.keeper.plan import folder
from torchft_x.launch.process import process_tree
from torchft_x.net import boot_id

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Pid:
    """Pid and start time of a process, which tell it from a later one with the same pid."""

    pid: int
    ticks: int
    """Start time since boot, in the kernel's clock ticks."""

    @property
    def alive(self) -> bool:
        """Whether the process is alive. Valid only on the host where it runs."""
        return process_tree.ticks(self.pid) == self.ticks


@dataclass(frozen=True, kw_only=True)
class ReplicaRecord:
    """Public record of one replica."""

    id: int
    state: str
    command: tuple[str, ...]
    group: str = ""
    """Group id of a trainer; '' for other roles."""
    node: int = 0
    process: Pid | None = None
    """Process of the replica; None while none runs."""
    starts: int = 0
    """Number of restarts of its process by the keeper."""
    restarts: int = 0
    """Number of restarts by that process, as it reports them, of its workers or of the lighthouse's server."""
    last_exit: str = ""
    """Reason of the last restart, by the keeper or by the process itself, or how the replica has ended."""
    code: int | None = None
    """Exit code, or -signal; None while the process runs."""


@dataclass(frozen=True, kw_only=True)
class RoleRecord:
    """Public record of one role."""

    name: str
    kind: str
    replicas: tuple[ReplicaRecord, ...]


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """Public record of a job: the content of job.json."""

    app_id: str
    session: str
    state: str
    reason: str
    """Sentence with the reason for that state."""
    run_dir: str
    log_dir: str
    host: str
    boot: str
    """Boot id of the host, from the kernel."""
    keeper: Pid
    launcher: int | None
    """Pid of the process with which the job ends; None if the job is detached."""
    created: float
    """Time of the keeper's start, in Unix seconds."""
    updated: float
    """Time of the last change, in Unix seconds."""
    groups: int
    """Wanted number of groups; 0 if the job has none."""
    roles: tuple[RoleRecord, ...]
    answer: tuple[str, str] = ("", "")
    """Answer to the last request for another number of groups: the request's name, and the reason of a refusal or ''."""

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def restarts(self) -> int:
        return sum(replica.starts + replica.restarts for role in self.roles for replica in role.replicas)


def pid_of(pid: int) -> Pid:
    return Pid(pid=pid, ticks=process_tree.ticks(pid) or 0)


def path_of(run_dir: str | Path, app_id: str | None = None) -> Path:
    """Return the path of the record of the run directory's newest job, or of the earlier job `app_id`."""
    return Path(run_dir, "job.json") if app_id is None else folder(run_dir) / f"{app_id}.job.json"


def write(record: JobRecord) -> None:
    """Replace the record atomically. Raise `OSError` if it can't be written."""
    replace_file(path_of(record.run_dir), json.dumps({"format": FORMAT, **dataclasses.asdict(record)}, indent=1) + "\n")


def read(run_dir: str | Path, app_id: str | None = None) -> JobRecord:
    """Return the record of the newest job, or of the job `app_id`. Raise `UnreadableError` if it can't be read.

    A job whose keeper has died without recording an end is returned as FAILED.
    """
    found = _checked(_load(path_of(run_dir)))
    if app_id is None or found.app_id == app_id:
        return found
    return _checked(_load(path_of(run_dir, app_id)))


def _load(path: Path) -> JobRecord:
    return read_state(path, _job, "no job of local_ft was started in that run directory, or it was removed")


def _checked(record: JobRecord) -> JobRecord:
    if record.over or record.host != socket.gethostname():  # processes of another host can't be checked
        return record
    if record.boot == boot_id() and record.keeper.alive:
        return record
    log = folder(record.run_dir) / f"{record.app_id}.log"
    reason = f"The process that kept the job ({record.keeper.pid}) is gone without a word; its own is in {log}."
    return dataclasses.replace(record, state="FAILED", reason=reason)


def _job(found: dict[str, Any]) -> JobRecord:
    """Return the record from parsed JSON. Raise `ValueError` or `TypeError` if `write` can't have written it."""
    if found["format"] != FORMAT:
        raise ValueError("another format")
    record = from_json(JobRecord, found)
    if not {record.state, *(r.state for role in record.roles for r in role.replicas)} <= set(STATES):
        raise ValueError("another version's state")
    return record
