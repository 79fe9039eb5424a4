"""Converts the record of a local job into TorchX's values."""

from __future__ import annotations

import json
import socket

from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import AppState, Role, RoleStatus
from torchx.specs.api import NONE, ReplicaStatus

from torchft_x.launch.keeper.record import JobRecord, ReplicaRecord, RoleRecord


def response(job: JobRecord) -> DescribeAppResponse:
    elsewhere = f"As written on {job.host}." if job.host != socket.gethostname() else ""
    return DescribeAppResponse(
        app_id=job.app_id,
        state=AppState[job.state],
        num_restarts=job.restarts,
        msg=" ".join(filter(None, [job.reason, elsewhere])) or NONE,
        ui_url=f"file://{job.run_dir}",
        roles_statuses=[RoleStatus(role.name, [_status(job, role, r) for r in role.replicas]) for role in job.roles],
        roles=[_role(role) for role in job.roles if role.replicas],
    )


def unreadable(app_id: str, sentence: str) -> DescribeAppResponse:
    return DescribeAppResponse(app_id=app_id, state=AppState.UNKNOWN, num_restarts=0, msg=sentence)


def _status(job: JobRecord, role: RoleRecord, replica: ReplicaRecord) -> ReplicaStatus:
    state = replica.state if job.over is False or replica.state in ("SUCCEEDED", "FAILED") else "CANCELLED"
    return ReplicaStatus(
        id=replica.id,
        state=AppState[state],
        role=role.name,
        hostname=job.host,
        structured_error_msg=_story(job, replica),
    )


def _story(job: JobRecord, replica: ReplicaRecord) -> str:
    """Return restarts and the last exit in the format of TorchX's structured errors, or `NONE` if there are none."""
    if not (replica.starts or replica.restarts or replica.code or replica.last_exit):
        return str(NONE)
    own = f" ({replica.starts} of its supervisor)" if replica.starts else ""
    parts = [f"restarts: {replica.starts + replica.restarts}{own}"]
    parts += [f"last: {replica.last_exit}"] if replica.last_exit else []
    message = {"message": ", ".join(parts), "errorCode": replica.code, "extraInfo": {"timestamp": int(job.updated)}}
    return json.dumps({"message": message})


def _role(role: RoleRecord) -> Role:
    first = role.replicas[0]
    return Role(
        name=role.name,
        image="",
        entrypoint=first.command[0],
        args=list(first.command[1:]),
        num_replicas=max(replica.id for replica in role.replicas) + 1,
    )
