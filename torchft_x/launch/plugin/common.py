"""Common parts of the three schedulers: errors as one sentence, and a job's status in TorchX's values."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence

from torchx.schedulers.api import DescribeAppResponse, filter_regex
from torchx.specs import AppDef, AppState, Role, RoleStatus
from torchx.specs.api import NONE, ReplicaStatus

from torchft_x.errors import TorchftXError
from torchft_x.launch.schedulers import excepthook
from torchft_x.launch.schedulers.role import FtRole


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
