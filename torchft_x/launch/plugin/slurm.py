"""TorchX scheduler `slurm_ft`, for both lines of TorchX: each replica group is a Slurm job of its own (launch/slurm)."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream, filter_regex
from torchx.schedulers.ids import make_unique
from torchx.specs import AppDef, AppDryRunInfo, AppState, Role, RoleStatus, macros, runopts
from torchx.specs.api import NONE, ReplicaStatus

from torchft_x.errors import TorchftXError
from torchft_x.launch.job.app import run_dir_of
from torchft_x.launch.schedulers import excepthook
from torchft_x.launch.schedulers.role import FtRole
from torchft_x.launch.slurm import commands, options
from torchft_x.launch.slurm.build import Request, build
from torchft_x.launch.slurm.controller import Controller
from torchft_x.launch.slurm.launch import launch
from torchft_x.launch.slurm.rules.manifest import Part
from torchft_x.launch.slurm.rules.queue import Row
from torchft_x.launch.slurm.status import JobStatus, StatusReader, batch_log, logs, replica

NAME = "slurm_ft"
_LOOK = 0.2  # seconds between polls of a log file
_CHUNK = 1 << 16


class SlurmFtScheduler(Scheduler):  # type: ignore[misc]  # to the checker TorchX's classes are Any
    """Scheduler for Slurm. It keeps no state of jobs: it reads Slurm's queue and the job's run directory for each call."""

    def __init__(self, session_name: str, controller: Controller | None = None) -> None:
        super().__init__(NAME, session_name)
        if excepthook.in_command("log"):
            excepthook.end_quietly()
        if excepthook.in_command("run") and any(
            o.startswith("-") for o in excepthook.read_command(sys.argv[2:]).options
        ):
            raise excepthook.refused(
                "in -cfg, TorchX takes each = for one of its own: write sbatch_args='--NAME VALUE', or set "
                f"sbatch_args in the section [{NAME}] of .torchxconfig."
            )
        self._controller = controller or Controller()
        self._status_reader = StatusReader(self._controller)

    def _run_opts(self) -> runopts:
        opts = runopts()
        for name, (kind, text) in options.OPTIONS.items():
            opts.add(name, type_=kind, default=False if kind is bool else None, help=text)
        return opts

    # --- the request ---------------------------------------------------------------------------------------------------

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> Any:
        try:
            if not any(isinstance(role, FtRole) for role in app.roles):  # our components have called it already
                excepthook.prepare()
            app_id = re.sub(r"[^A-Za-z0-9_.-]", "-", make_unique(app.name))
            run_dir = run_dir_of(app, cfg).replace(macros.app_id, app_id)
            request = build(app, cfg, app_id=app_id, run_dir=run_dir)
        except TorchftXError as e:
            raise excepthook.refused(str(e)) from None
        return AppDryRunInfo(request, str)

    def _validate(self, *_: Any) -> None:
        """Accept every app: roles need no resources here."""

    def schedule(self, dryrun_info: Any) -> str:
        request: Request = dryrun_info.request
        app, index = request.manifest.app, self._status_reader.index
        try:
            index.add(app, request.manifest.run_dir)
            launch(request, self._controller)
        except BaseException as e:
            index.forget(app)
            if isinstance(e, (TorchftXError, OSError)):
                raise excepthook.refused(f"the job can't be submitted: {e}") from None
            raise
        self._status_reader.forget()
        return app

    # --- what is known of a job ----------------------------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        now = self._status_reader.poll(app_id)
        if now is None and excepthook.in_command("log"):  # `torchx log` would wait forever
            raise excepthook.refused(
                f"there is no job {app_id} of {NAME}; `torchx list -s {NAME}` names those of yours."
            )
        if now is not None and now.state == "UNKNOWN" and excepthook.in_command("log"):  # `torchx log` would wait
            where = f" Its logs are in {now.manifest.log_dir}." if now.manifest is not None else ""
            raise excepthook.refused(f"nothing is known of the job {app_id}. {now.trouble}{where}")
        return None if now is None else _response(now)

    def list(self, *_: Any) -> list[ListAppResponse]:
        return [ListAppResponse(app_id=now.app, state=AppState[now.state]) for now in self._status_reader.apps()]

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: Any = None,
        until: Any = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Return the lines of all incarnations of a replica, in order. One file holds both streams, so `streams` is ignored."""
        now = self._status_reader.poll(app_id)
        if now is None:
            raise excepthook.refused(f"there is no job {app_id} of {NAME}.")
        if now.manifest is None:
            raise excepthook.refused(now.trouble or f"the run directory of {app_id} can't be read from here.")
        if replica(now.manifest, role_name, k) is None:
            there = ", ".join(f"{p.role}/{p.number * p.nodes}" for p in now.manifest.parts)
            raise excepthook.refused(f"the job {app_id} has no {role_name}/{k}; it has {there}.")
        lines = self._lines(app_id, role_name, k, should_tail)
        return filter_regex(regex, lines) if regex else lines

    def _lines(self, app_id: str, role: str, k: int, tail: bool) -> Iterator[str]:
        done: list[Path] = []  # files that are read to their end
        while True:
            now = self._status_reader.poll(app_id)
            over = not tail or now is None or now.over
            found = None if now is None or now.manifest is None else replica(now.manifest, role, k)
            files = [] if found is None or now is None or now.manifest is None else logs(now.manifest, *found)
            for path in files:
                if path not in done:
                    newest = path == files[-1]
                    yield from _read(path, self._until(app_id, role, k, path) if tail and newest else None)
                    done.append(path)
                    break
            else:
                if over:
                    return
                time.sleep(_LOOK)

    def _until(self, app_id: str, role: str, k: int, path: Path) -> Any:
        """Return a function that returns whether the log file is complete: the job is over, or a newer incarnation has begun."""

        def done() -> bool:
            now = self._status_reader.poll(app_id)
            if now is None or now.manifest is None or now.over:
                return True
            found = replica(now.manifest, role, k)
            return found is None or logs(now.manifest, *found)[-1:] != [path]

        return done

    def _cancel_existing(self, app_id: str) -> None:
        now = self._status_reader.poll(app_id)
        if now is None or (now.over and not now.alive):
            return
        try:
            if now.manifest is not None:
                commands.cancel(now.manifest.run_dir, self._controller)
            else:
                self._controller.cancel(now.alive)
        except TorchftXError as e:
            raise excepthook.refused(str(e)) from None
        finally:
            self._status_reader.forget()


def _read(path: Path, done: Any) -> Iterator[str]:
    """Yield lines with their ends: those that exist if `done` is None, else until `done` returns True and all are read."""
    rest = ""
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            while True:
                last = done is None or done()  # before the read, so that all lines written by then are read
                while text := file.read(_CHUNK):
                    *lines, rest = (rest + text).split("\n")
                    yield from (line + "\n" for line in lines)
                if last:
                    break
                time.sleep(_LOOK)
    except OSError as e:
        print(f"torchft_x: {path} can't be read ({e.strerror}).", file=sys.stderr)
    if rest:
        yield rest + "\n"


def _response(now: JobStatus) -> DescribeAppResponse:
    if now.manifest is None:
        return DescribeAppResponse(
            app_id=now.app, state=AppState[now.state], num_restarts=now.restarts, msg=now.trouble or NONE
        )
    roles: dict[str, list[ReplicaStatus]] = {}
    reasons = [now.trouble] if now.trouble else []
    for part in now.manifest.parts:
        said = now.part_status(part)
        row = now.rows.get(part.name)
        nodes = list(row.nodes) if row is not None else []
        if (said.why and not part.gone and said.state != now.state) or said.restarting:
            log = f"; see {batch_log(now.manifest, part)}" if said.state == "FAILED" else ""
            reasons.append(f"{part.name} ({part.job or 'not submitted'}): {said.why}{log}.")
        for node in range(part.nodes):
            status = ReplicaStatus(
                id=part.number * part.nodes + node,
                state=AppState[said.state],
                role=part.role,
                hostname=nodes[node] if node < len(nodes) else "",
                structured_error_msg=_story(part, row, said.why),
            )
            roles.setdefault(part.role, []).append(status)
    if now.state == "FAILED" and now.manifest.why:
        reasons.append(now.manifest.why)
    return DescribeAppResponse(
        app_id=now.app,
        state=AppState[now.state],
        num_restarts=now.restarts,
        msg=" ".join(reasons) or NONE,
        ui_url=f"file://{os.path.abspath(now.manifest.run_dir)}",
        roles_statuses=[RoleStatus(name, found) for name, found in roles.items()],
        roles=[Role(name=name, image="", num_replicas=max(r.id for r in found) + 1) for name, found in roles.items()],
    )


def _story(part: Part, row: Row | None, why: str) -> str:
    """Return restarts and the reason in the format of TorchX's structured errors, or `NONE` if there are none."""
    restarts = (row.restarts if row is not None else 0) + len(part.earlier)
    code = row.exit_code if row is not None else 0
    if not (restarts or code):
        return str(NONE) if why in ("", "waits") else json.dumps(_message(why, 0))
    part_status = [f"restarts: {restarts}"] if restarts else []
    return json.dumps(_message(", ".join([*part_status, *([why] if why else [])]), code))


def _message(text: str, code: int) -> dict[str, Any]:
    return {"message": {"message": text, "errorCode": code, "extraInfo": {"timestamp": int(time.time())}}}


def create_scheduler(session_name: str, **_: Any) -> SlurmFtScheduler:
    """Return the scheduler, as TorchX's factory. TorchX passes every variable TORCHX_... as an option."""
    return SlurmFtScheduler(session_name)
