"""Common parts of the three schedulers: errors as one sentence, a job's status in TorchX's values, followed log files."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from torchx.schedulers.api import DescribeAppResponse, filter_regex
from torchx.specs import AppDef, AppState, Role, RoleStatus
from torchx.specs.api import NONE, ReplicaStatus

from torchft_x.errors import TorchftXError
from torchft_x.launch.process.output import OLD_LOGS, put_aside
from torchft_x.launch.schedulers import excepthook
from torchft_x.launch.schedulers.role import FtRole
from torchft_x.timing import POLL

_CHUNK = 65536


@contextlib.contextmanager
def sentence(what: str = "") -> Iterator[None]:
    """End the command with one sentence, which begins with `what`, on any of our errors."""
    try:
        yield
    except (TorchftXError, OSError) as e:
        raise excepthook.refused(f"{what}{e}") from None


def prepare(app: AppDef) -> None:
    """Check the command's options, as our components do it for their own apps. Raise `ConfigError`."""
    if not any(isinstance(role, FtRole) for role in app.roles):
        excepthook.prepare()


def unknown_job(scheduler: str, app_id: str, whose: str = "of yours") -> SystemExit:
    """Return the end of a command for a job that does not exist. `torchx log` itself would wait forever."""
    return excepthook.refused(
        f"there is no job {app_id} of {scheduler}; `torchx list -s {scheduler}` names those {whose}."
    )


def unknown_replica(app_id: str, name: str, there: Iterable[str]) -> SystemExit:
    """Return the end of a command for a replica, such as ``trainer/7``, that a job does not have."""
    return excepthook.refused(f"the job {app_id} has no {name}; it has {', '.join(there) or 'nothing'}.")


def selected(lines: Iterator[str], regex: str | None) -> Iterable[str]:
    found: Iterable[str] = filter_regex(regex, lines) if regex else lines
    return found


def replica(
    role: str, number: int, state: str, host: str, words: Sequence[str], code: int | None = -1, at: float | None = None
) -> ReplicaStatus:
    """Return a replica's status. `words` and `code` tell of its last end, which was at the Unix time `at`, or just now."""
    extra = {"timestamp": int(time.time() if at is None else at)}
    message = {"message": {"message": ", ".join(words), "errorCode": code, "extraInfo": extra}}
    error = json.dumps(message) if words else NONE
    return ReplicaStatus(id=number, state=AppState[state], role=role, hostname=host, structured_error_msg=error)


def response(
    app_id: str, state: str, restarts: int, msg: str, replicas: Sequence[ReplicaStatus] = (), url: str | None = None
) -> DescribeAppResponse:
    """Return the job's status, with its replicas by role."""
    roles: dict[str, list[ReplicaStatus]] = {}
    for one in replicas:
        roles.setdefault(one.role, []).append(one)
    return DescribeAppResponse(
        app_id=app_id,
        state=AppState[state],
        num_restarts=restarts,
        msg=msg or NONE,
        ui_url=url,
        roles_statuses=[RoleStatus(name, found) for name, found in roles.items()],
        roles=[Role(name=name, image="", num_replicas=max(r.id for r in found) + 1) for name, found in roles.items()],
    )


def follow(path: Path, finished: Callable[[], bool]) -> Iterator[str]:
    """Yield lines with their ends, beginning with the oldest kept file, until `finished` returns True.

    All lines written before that are read. Wait for the file to appear.
    """
    done = False
    while (file := _after(path, None)) is None:
        if done:
            return
        done = finished()
        time.sleep(0 if done else POLL)
    partial = ""
    while file is not None:
        done = finished()  # before the read, so that all lines written by then are read
        newer = _after(path, file)  # before the read: nothing more is written to this file once a newer one exists
        while text := file.read(_CHUNK):
            *lines, partial = (partial + text).split("\n")
            yield from (line + "\n" for line in lines)
        if newer is not None or done:
            file.close()
            file = newer
        else:
            time.sleep(POLL)
    if partial:
        yield partial + "\n"


def _after(path: Path, file: TextIO | None) -> TextIO | None:
    """Return the log file after this one, which may have been renamed, or the oldest if `file` is None or gone; None if there is none."""
    found = None
    for name in (path, *(put_aside(path, number) for number in range(1, OLD_LOGS + 1))):  # the newest first
        try:
            candidate = name.open(encoding="utf-8", errors="replace", newline="\n")
        except OSError:
            continue
        if file is not None and os.path.sameopenfile(candidate.fileno(), file.fileno()):
            candidate.close()
            return found
        if found is not None:
            found.close()
        found = candidate
    return found
