"""Publishes a keeper's job: job.json (record.py) to all, groups.json (core/job/kept_groups.py) to its lighthouse."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import time
from collections.abc import Iterable

from torchft_x.atomic_file import replace_file
from torchft_x.core.job.kept_groups import render
from torchft_x.core.messages.job import GroupsChanged, SupervisorFinished
from torchft_x.launch.keeper import record
from torchft_x.launch.keeper.plan import JobPlan, folder
from torchft_x.launch.keeper.roles import RoleProcess
from torchft_x.launch.keeper.upkeep import Replica
from torchft_x.net import boot_id


class JobRecordWriter:
    """Publisher of a job's state. Owns the files job.json and groups.json."""

    def __init__(self, plan: JobPlan) -> None:
        self._plan = plan  # fixed
        self._created = time.time()
        self._keeper = record.pid_of(os.getpid())
        self._boot = boot_id()
        self._written: record.JobRecord | None = None
        self.state, self.reason = "PENDING", ""  # the job's, see `JobRecord`
        self.answer = ("", "")  # answer to the last request for another number of groups, see `JobRecord.answer`

    def publish(self, processes: Iterable[RoleProcess], groups: int) -> None:
        """Write job.json if anything has changed. A full disk or a removed directory does not end the job."""
        mine: dict[str, list[record.ReplicaRecord]] = {role.name: [] for role in self._plan.roles}
        for process in processes:
            mine[process.replica.role.name].append(process.record(groups))
        now = record.JobRecord(
            app_id=self._plan.app_id,
            session=self._plan.session,
            state=self.state,
            reason=self.reason,
            run_dir=self._plan.run_dir,
            log_dir=self._plan.log_dir,
            host=socket.gethostname(),
            boot=self._boot,
            keeper=self._keeper,
            launcher=self._plan.launcher,
            created=self._created,
            updated=0.0,
            groups=groups,
            roles=tuple(
                record.RoleRecord(name=role.name, kind=role.kind, replicas=tuple(mine[role.name]))
                for role in self._plan.roles
            ),
            answer=self.answer,
        )
        if now != self._written:
            with contextlib.suppress(OSError):
                record.write(dataclasses.replace(now, updated=time.time()))
                self._written = now

    def tell_groups(self, processes: Iterable[RoleProcess], groups: int) -> None:
        """Write groups.json for the job's own lighthouse: the wanted groups, and the supervisors that have ended for good."""
        over = [p.replica for p in processes if p.replica.role.kind == "trainer" and p.replica.over]
        ended = [SupervisorFinished(r.group, *_end(r), r.node) for r in over]
        text = render(GroupsChanged(tuple(str(g) for g in range(groups)), tuple(ended)))
        with contextlib.suppress(OSError):
            replace_file(folder(self._plan.run_dir) / "groups.json", text)


def _end(replica: Replica) -> tuple[int, str]:
    """Return the code and sentence of a supervisor that has ended for good."""
    return (0, "") if replica.code == 0 else (1, f"its supervisor has {replica.last_exit}")
