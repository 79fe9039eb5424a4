"""TorchX scheduler `slurm_ft`, for both lines of TorchX: each replica group is a Slurm job of its own (launch/slurm)."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchx.schedulers.ids import make_unique
from torchx.specs import AppDef, AppDryRunInfo, AppState, macros, runopts

from torchft_x.launch.job.app import run_dir_of
from torchft_x.launch.job.states import RUNNING
from torchft_x.launch.plugin import common
from torchft_x.launch.plugin.common import follow
from torchft_x.launch.schedulers import excepthook
from torchft_x.launch.slurm import options, store
from torchft_x.launch.slurm.build import Request, build
from torchft_x.launch.slurm.controller import Controller
from torchft_x.launch.slurm.status import JobStatus, StatusReader, batch_log, logs, replica
from torchft_x.launch.slurm.submit import cancel, launch
from torchft_x.timing import POLL

NAME = "slurm_ft"


class SlurmFtScheduler(Scheduler):  # type: ignore[misc]  # to the checker TorchX's classes are Any
    """Scheduler for Slurm. It keeps no state of jobs: it reads Slurm's queue and the job's run directory for each call."""

    def __init__(self, session_name: str, controller: Controller | None = None) -> None:
        super().__init__(NAME, session_name)
        if excepthook.in_command("log"):
            excepthook.end_quietly()
        if excepthook.in_command("run") and any(o.startswith("-") for o in excepthook.read_command(sys.argv[2:])[1]):
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
        with common.sentence():
            common.prepare(app)
            app_id = re.sub(r"[^A-Za-z0-9_.-]", "-", make_unique(app.name))
            run_dir = run_dir_of(app, cfg).replace(macros.app_id, app_id)
            request = build(app, cfg, app_id=app_id, run_dir=run_dir)
        return AppDryRunInfo(request, str)

    def _validate(self, *_: Any) -> None:
        """Accept every app: roles need no resources here."""

    def schedule(self, dryrun_info: Any) -> str:
        request: Request = dryrun_info.request
        app, index = request.manifest.app, self._status_reader.index
        with common.sentence("the job can't be submitted: "):
            index.add(app, request.manifest.run_dir)
            try:
                launch(request, self._controller)
            except BaseException:
                index.forget(app)
                raise
        self._status_reader.forget()
        return app

    # --- what is known of a job ----------------------------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        now = self._status_reader.poll(app_id)
        if now is None and excepthook.in_command("log"):
            raise common.unknown_job(NAME, app_id)
        if now is not None and now.state == "UNKNOWN" and excepthook.in_command("log"):  # `torchx log` would wait
            where = f" Its logs are in {now.manifest.log_dir}." if now.manifest is not None else ""
            raise excepthook.refused(f"nothing is known of the job {app_id}. {now.trouble}{where}")
        if now is not None and (
            (now.unheard and excepthook.in_command("log"))  # `torchx log` waits on PENDING
            or (now.alive and excepthook.in_command("cancel"))  # `torchx cancel` ends no job that is over
        ):
            now = dataclasses.replace(now, state=RUNNING)
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
        """Return the lines of all attempts of a replica, in order. One file holds both streams, so `streams` is ignored."""
        now = self._status_reader.poll(app_id)
        if now is None:
            raise common.unknown_job(NAME, app_id)
        if now.manifest is None:
            raise excepthook.refused(now.trouble or f"the run directory of {app_id} can't be read from here.")
        if replica(now.manifest, role_name, k) is None:
            there = [f"{p.role}/{p.number * p.nodes}" for p in now.manifest.parts]
            raise common.unknown_replica(app_id, f"{role_name}/{k}", there)
        return common.selected(self._lines(app_id, role_name, k, should_tail), regex)

    def _lines(self, app_id: str, role: str, k: int, tail: bool) -> Iterator[str]:
        def look() -> tuple[bool, list[Path]]:
            """Return whether the replica writes no more, or need not be followed, and its log files."""
            now = self._status_reader.poll(app_id)
            found = None if now is None or now.manifest is None else replica(now.manifest, role, k)
            if now is None or now.manifest is None or found is None:
                return True, []
            return not tail or now.over, logs(now.manifest, *found)

        def is_complete(path: Path) -> bool:
            over, files = look()
            return over or files[-1] != path

        read: set[Path] = set()
        while True:
            over, files = look()
            path = next((path for path in files if path not in read), None)
            if path is not None:
                yield from follow(path, functools.partial(is_complete, path))
                read.add(path)
            elif over:
                return
            else:
                time.sleep(POLL)

    def _cancel_existing(self, app_id: str) -> None:
        now = self._status_reader.poll(app_id)
        if now is None or (now.over and not now.alive):
            return
        self._status_reader.forget()
        with common.sentence():
            if now.manifest is not None:
                cancel(now.manifest.run_dir, self._controller)
            else:
                self._controller.cancel(now.alive)


def _response(now: JobStatus) -> DescribeAppResponse:
    if now.manifest is None:
        return common.response(now.app, now.state, now.restarts, now.trouble)
    replicas = []
    reasons = [now.trouble] if now.trouble else []
    for part in now.manifest.parts:
        said = now.part_status(part)
        row = now.rows.get(part.name)
        nodes = row.nodes if row is not None else ()
        elsewhere = said.state != now.state or part.name in now.unheard
        if (said.why and not part.gone and elsewhere) or said.restarting:
            log = f"; see {batch_log(now.manifest, part)}" if said.state == "FAILED" else ""
            reasons.append(f"{part.name} ({part.job or 'not submitted'}): {said.why}{log}.")
        restarts = (row.restarts if row is not None else 0) + len(part.earlier)
        words = [f"restarts: {restarts}"] if restarts else []
        words += [said.why] if said.why not in ("", "waits") else []
        code = row.exit_code if row is not None else 0
        for node in range(part.nodes):
            host = nodes[node] if node < len(nodes) else ""
            replicas.append(common.replica(part.role, part.number * part.nodes + node, said.state, host, words, code))
    reasons += [f"{why}." for why in store.unhealthy(now.manifest.run_dir).values()]
    if now.state == "FAILED" and now.manifest.why:
        reasons.append(now.manifest.why)
    url = f"file://{os.path.abspath(now.manifest.run_dir)}"
    return common.response(now.app, now.state, now.restarts, " ".join(reasons), replicas, url)


def create_scheduler(session_name: str, **_: Any) -> SlurmFtScheduler:
    """Return the scheduler, as TorchX's factory. TorchX passes every variable TORCHX_... as an option."""
    return SlurmFtScheduler(session_name)
