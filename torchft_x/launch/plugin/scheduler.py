"""TorchX scheduler `local_ft`: processes of this machine, as local_cwd starts them, owned by a keeper process per job.

It works with TorchX 0.7.0 and its nightly line: TorchX's local scheduler makes the request, whose shape is the same in both.
A job's status is in its run directory, so any shell can read it (launch/keeper/record.py).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Stream
from torchx.schedulers.local_scheduler import (
    CWDImageProvider,
    LocalScheduler,
    SignalException,
    _register_termination_signals,
)
from torchx.specs import AppDef, AppState, Role, macros, runopts

from torchft_x.errors import ConfigError
from torchft_x.launch.job.app import run_dir_of
from torchft_x.launch.job.index import Index
from torchft_x.launch.job.states import UnreadableError
from torchft_x.launch.keeper import plan, record
from torchft_x.launch.keeper.commands import send
from torchft_x.launch.keeper.plan import REPLICA, JobPlan, Process, RolePlan
from torchft_x.launch.keeper.record import JobRecord
from torchft_x.launch.keeper.streams import COMBINED, STDERR, STDOUT
from torchft_x.launch.plugin import common
from torchft_x.launch.plugin.common import follow
from torchft_x.launch.process.devices import ALL_VARIABLES, of_this_process
from torchft_x.launch.schedulers import excepthook
from torchft_x.launch.schedulers.role import FtRole
from torchft_x.timing import POLL_FAST, TIMING

NAME = "local_ft"


class LocalFtScheduler(LocalScheduler):  # type: ignore[misc]  # to the checker TorchX's classes are Any
    """Scheduler for this machine. It owns the keepers of jobs that end with this process, and no other state of jobs."""

    def __init__(self, session_name: str) -> None:
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        super().__init__(session_name, CWDImageProvider)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():  # TorchX's own turn Ctrl-C into a traceback in every command
                signal.signal(number, handler)
        if excepthook.in_command("log"):
            excepthook.end_quietly()
        self.backend = NAME
        self._index = Index()
        self._run_dir = ""  # run directory of the dry run in progress
        self._keepers: dict[str, subprocess.Popen[bytes]] = {}  # by app id, of jobs that end with this process
        # App, options and run directory of each dry run, by app id.
        self._roles: dict[str, tuple[AppDef, Mapping[str, Any], str]] = {}

    # --- the request ---------------------------------------------------------------------------------------------------

    def _run_opts(self) -> runopts:
        opts = super()._run_opts()
        opts.add(
            "detach",
            type_=bool,
            default=False,
            help="the job goes on when this command and its terminal end; see `torchx log`, `torchx cancel`",
        )
        opts.add("run_dir", type_=str, default=None, help="where the job's state is kept, unless the component says it")
        return opts

    def _get_app_log_dir(self, app_id: str, cfg: Mapping[str, Any]) -> str:
        base = cfg.get("log_dir")
        if base:
            return os.path.join(os.path.abspath(str(base)), self.session_name, app_id)
        return os.path.join(self._run_dir.replace(macros.app_id, app_id), "replicas", app_id)

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> Any:
        with common.sentence():
            common.prepare(app)
            self._run_dir = run_dir_of(app, cfg)
        info = super()._submit_dryrun(app, cfg)
        self._roles[info.request.app_id] = (app, cfg, self._run_dir)
        return info

    # --- the job -------------------------------------------------------------------------------------------------------

    def schedule(self, dryrun_info: Any) -> str:
        request = dryrun_info.request
        app, cfg, run_dir = self._roles[request.app_id]
        run_dir = run_dir.replace(macros.app_id, request.app_id)
        detach = bool(cfg.get("detach"))
        made = make_plan(app, request, session=self.session_name, run_dir=run_dir, detach=detach)
        with common.sentence("the job can't be started: "):
            plan.write(made)
            self._index.add(made.app_id, run_dir)
            self._start(made)
        return made.app_id

    def _start(self, made: JobPlan) -> None:
        """Start the job's keeper and wait until the roles run. Raise `ConfigError` if they can't be started."""
        log = plan.folder(made.run_dir) / f"{made.app_id}.log"
        with log.open("wb") as file:
            keeper = subprocess.Popen(
                [sys.executable, "-m", "torchft_x", "keep-job", made.run_dir, made.app_id],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        if made.launcher is not None:
            self._keepers[made.app_id] = keeper
            _register_termination_signals()
        deadline = time.monotonic() + TIMING.launcher_begin
        while True:
            found = self._find(made.app_id)
            if found is not None and found.state in ("RUNNING", "SUCCEEDED"):  # a short program may have ended already
                return
            if found is not None and found.over:
                raise ConfigError(found.reason)
            if keeper.poll() is not None and self._find(made.app_id) is None:
                raise ConfigError(_last_line(log))
            if time.monotonic() > deadline:
                keeper.kill()
                raise ConfigError(f"its keeper did not start the roles within {TIMING.launcher_begin:g} s; see {log}.")
            time.sleep(POLL_FAST)

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        here = excepthook.in_command("run") and threading.current_thread() is threading.main_thread()
        if here and app_id in self._roles and self._roles[app_id][1].get("detach"):
            self._leave_alone(app_id)
        try:
            found = self._find(app_id)
        except UnreadableError as e:
            return common.response(app_id, "UNKNOWN", 0, str(e))
        if found is None and excepthook.in_command("log"):
            raise common.unknown_job(NAME, app_id)
        return None if found is None else _response(found)

    def _leave_alone(self, app_id: str) -> None:
        """Print how to reach a detached job, and end the command, which would otherwise wait for the job."""
        handle = f"{NAME}://{self.session_name}/{app_id}"
        print(
            f"torchft_x: the job runs by itself; see it with `torchx status {handle}` and `torchx log --tail {handle}`, end it "
            f"with `torchx cancel {handle}`.",
            file=sys.stderr,
            flush=True,
        )
        raise SystemExit(0)

    def list(self, *_: Any) -> list[ListAppResponse]:
        found = []
        for app_id, run_dir in self._index.all():
            try:
                state = record.read(run_dir, app_id).state
            except UnreadableError as e:
                if e.missing:
                    self._index.forget(app_id)
                    continue
                state = "UNKNOWN"
            found.append(ListAppResponse(app_id=app_id, state=AppState[state]))
        return found

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
        found = self._find(app_id)
        if found is None:
            raise common.unknown_job(NAME, app_id)
        name = {Stream.STDOUT: STDOUT, Stream.STDERR: STDERR}.get(streams, COMBINED)
        path = Path(found.log_dir, role_name, str(k), name)
        there = [f"{role.name}/{r.id}" for role in found.roles for r in role.replicas]
        if f"{role_name}/{k}" not in there and not path.exists():
            raise common.unknown_replica(app_id, f"{role_name}/{k}", there)
        return common.selected(follow(path, lambda: not should_tail or self._is_over(app_id)), regex)

    def _is_over(self, app_id: str) -> bool:
        try:
            found = self._find(app_id)
        except UnreadableError:
            return True
        return found is None or found.over

    def _cancel_existing(self, app_id: str) -> None:
        found = self._find(app_id)
        if found is not None and not found.over:
            with common.sentence():
                send(found, signal.SIGTERM)

    def _find(self, app_id: str) -> JobRecord | None:
        """Return the job's record, or None if there is no such job. Raise `UnreadableError` if the record can't be read."""
        run_dir = self._index.find(app_id)
        try:
            return None if run_dir is None else record.read(run_dir, app_id)
        except UnreadableError as e:
            if e.missing:
                return None
            raise

    def close(self) -> None:
        """End the jobs that end with this process, gracefully. Pass a further Ctrl-C on to their keepers."""
        keepers, self._keepers = getattr(self, "_keepers", {}), {}
        for keeper in keepers.values():
            if keeper.poll() is None:
                end_keeper(keeper)


def end_keeper(keeper: subprocess.Popen[bytes]) -> None:
    """Send the keeper SIGTERM and wait until it ends. Repeat SIGTERM for each Ctrl-C, at most twice.

    After a third one, or the time limit, kill the keeper, which kills all processes of its job.
    """
    deadline = time.monotonic() + TIMING.launcher_end
    for _ in range(3):
        keeper.terminate()
        try:
            keeper.wait(max(0.0, deadline - time.monotonic()))
            return
        except subprocess.TimeoutExpired:
            break
        except (KeyboardInterrupt, SignalException):
            continue
    keeper.kill()
    keeper.wait()


def make_plan(app: AppDef, request: Any, *, session: str, run_dir: str, detach: bool) -> JobPlan:
    """Return the keeper's plan for TorchX's request, to which the roles' hooks have been applied."""
    roles = []
    facts = None
    for role in app.roles:
        ours = role.ft if isinstance(role, FtRole) else None
        facts = facts or ours
        replicas = tuple(
            Process(args=tuple(r.args), env=dict(r.env), cwd=r.cwd) for r in request.role_params[role.name]
        )
        roles.append(
            RolePlan(
                name=role.name,
                replicas=replicas,
                kind=ours.kind if ours else "",
                nodes=ours.nodes if ours and ours.kind == "trainer" else 1,
                max_restarts=ours.max_restarts if ours else 0,
                gpu=int(role.resource.gpu) if ours else 0,
                template=_template(role, replicas[0], request.app_id) if ours and ours.kind == "trainer" else None,
            )
        )
    return JobPlan(
        app_id=request.app_id,
        session=session,
        run_dir=run_dir,
        log_dir=request.log_dir,
        roles=tuple(roles),
        min_replicas=facts.min_replicas if facts else 1,
        own_lighthouse=bool(facts and facts.own_lighthouse),
        devices=of_this_process() if any(role.shares_devices for role in roles) else None,
        launcher=None if detach else os.getpid(),
    )


def _template(role: Role, first: Process, app_id: str) -> Process:
    """Return the process of an additional replica, with the placeholder `REPLICA`: by the role, with the first's environment."""
    values = macros.Values(img_root=first.cwd or "", app_id=app_id, replica_id=REPLICA, rank0_env="TORCHX_RANK0_HOST")
    made = values.apply(role)
    environ = {**first.env, **made.env, "PATH": first.env.get("PATH", "")}
    for name in ALL_VARIABLES:
        if name not in made.env:
            environ.pop(name, None)  # the first replica's own devices
    error_file = first.env.get("TORCHELASTIC_ERROR_FILE", "")
    if "TORCHELASTIC_ERROR_FILE" not in made.env and error_file:
        environ["TORCHELASTIC_ERROR_FILE"] = str(Path(error_file).parent.parent / REPLICA / "error.json")
    return Process(args=(role.entrypoint, *made.args), env=environ, cwd=first.cwd)


def _response(job: JobRecord) -> DescribeAppResponse:
    elsewhere = f"As written on {job.host}." if job.host != socket.gethostname() else ""
    replicas = []
    for role in job.roles:
        for one in role.replicas:
            state = one.state if not job.over or one.state in ("SUCCEEDED", "FAILED") else "CANCELLED"
            own = f" ({one.starts} of its supervisor)" if one.starts else ""
            words = [
                f"restarts: {one.starts + one.restarts}{own}",
                *([f"last: {one.last_exit}"] if one.last_exit else []),
            ]
            if not (one.starts or one.restarts or one.code or one.last_exit):
                words = []
            replicas.append(common.replica(role.name, one.id, state, job.host, words, one.code, job.updated))
    message = " ".join(filter(None, [job.reason, elsewhere]))
    found = common.response(job.app_id, job.state, job.restarts, message, replicas, f"file://{job.run_dir}")
    for shown, role in zip(found.roles, (role for role in job.roles if role.replicas), strict=True):
        shown.entrypoint, *shown.args = role.replicas[0].command
    return found


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return (
        lines[-1].removeprefix("torchft_x keep-job: ") if lines else f"its keeper has ended without a word; see {log}."
    )


def create_scheduler(session_name: str, **_: Any) -> LocalFtScheduler:
    """Return the scheduler, as TorchX's factory. TorchX passes every variable TORCHX_... as an option."""
    return LocalFtScheduler(session_name)
