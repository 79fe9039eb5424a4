"""TorchX's interface of local_ft, in this process; the commands on both lines are in tests/extended/matrix/test_local_ft.py."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torchx.schedulers.api import Stream
from torchx.specs import AppDef, AppState, Role, resource

from tests.util import wait_for
from torchft_x import env
from torchft_x.launch.job.app import run_dir_of
from torchft_x.launch.job.build import ft_app
from torchft_x.launch.keeper import record
from torchft_x.launch.plugin.scheduler import LocalFtScheduler, create_scheduler, make_plan
from torchft_x.launch.process import process_tree


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalFtScheduler]:
    monkeypatch.setenv(env.STATE_HOME, str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    made = create_scheduler("here", torchx_unknown="1")
    now = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    assert now == handlers  # only whoever starts a job needs others
    yield made
    made.close()
    for number, handler in zip((signal.SIGINT, signal.SIGTERM), handlers, strict=True):
        signal.signal(number, handler)


def app(code: str, replicas: int = 2) -> AppDef:
    role = Role(
        name="main",
        image="",
        entrypoint=sys.executable,
        args=["-c", code, "${replica_id}", "${app_id}"],
        num_replicas=replicas,
        resource=resource(cpu=1, gpu=0, memMB=1),
    )
    return AppDef(name="some", roles=[role])


def submit(scheduler: LocalFtScheduler, what: AppDef, **options: Any) -> str:
    cfg = scheduler.run_opts().resolve(options)
    return str(scheduler.schedule(scheduler.submit_dryrun(what, cfg)))


def state(scheduler: LocalFtScheduler, app_id: str) -> str:
    found = scheduler.describe(app_id)
    return str(found.state)


def test_a_job_from_its_start_to_its_end(scheduler: LocalFtScheduler, tmp_path: Path) -> None:
    app_id = submit(scheduler, app("import sys; print('out', sys.argv[1]); print('err', file=sys.stderr)"))
    wait_for(lambda: state(scheduler, app_id) == "SUCCEEDED", 20, "its end")
    another = create_scheduler("another")
    assert [(a.app_id, a.state) for a in another.list()] == [(app_id, AppState.SUCCEEDED)]
    found = another.describe(app_id)
    (role,) = found.roles
    assert (role.name, role.num_replicas, role.args[-2:]) == ("main", 2, ["0", app_id])
    (statuses,) = found.roles_statuses
    assert [r.state for r in statuses.replicas] == [AppState.SUCCEEDED] * 2
    assert found.ui_url == f"file://{tmp_path / 'runs' / app_id}"
    assert sorted(another.log_iter(app_id, "main", 1)) == ["err\n", "out 1\n"]
    assert list(another.log_iter(app_id, "main", 1, streams=Stream.STDOUT, should_tail=True)) == ["out 1\n"]
    assert list(another.log_iter(app_id, "main", 0, regex="^e")) == ["err\n"]


def test_it_ends_with_its_scheduler_or_not(scheduler: LocalFtScheduler, tmp_path: Path) -> None:
    stays = app("import time; time.sleep(600)", replicas=1)
    bound = submit(scheduler, stays, run_dir=str(tmp_path / "bound"))
    free = submit(scheduler, stays, run_dir=str(tmp_path / "free"), detach=True, log_dir=str(tmp_path / "logs"))
    assert (tmp_path / "logs" / "here" / free / "main" / "0" / "stdout.log").exists()
    scheduler.close()
    assert state(scheduler, bound) == "CANCELLED"
    assert state(scheduler, free) == "RUNNING"
    keeper = record.read(tmp_path / "free").keeper
    scheduler.cancel(free)
    wait_for(lambda: state(scheduler, free) == "CANCELLED", 20, "its end")
    wait_for(lambda: not process_tree.is_alive(keeper.pid), 20, "its keeper's end")


def test_what_cant_be_started_is_a_sentence(scheduler: LocalFtScheduler, capfd: pytest.CaptureFixture[str]) -> None:
    missing = app("", replicas=1)
    missing.roles[0].entrypoint = "no-such-program"
    with pytest.raises(SystemExit):
        submit(scheduler, missing)
    assert "torchft_x: the job can't be started: main: " in capfd.readouterr().err


def test_one_that_is_done_before_anybody_looks_has_succeeded(
    scheduler: LocalFtScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = LocalFtScheduler._find

    def late(self: LocalFtScheduler, app_id: str) -> record.JobRecord | None:
        found = known(self, app_id)
        return found if found is not None and found.over else None

    monkeypatch.setattr(LocalFtScheduler, "_find", late)
    assert state(scheduler, submit(scheduler, app("pass"))) == str(AppState.SUCCEEDED)


def test_nobody_knows_it(scheduler: LocalFtScheduler, tmp_path: Path) -> None:
    for name in ("never-was", "../etc", "a\nb"):
        assert scheduler.describe(name) is None
        scheduler._cancel_existing(name)
    app_id = submit(scheduler, app("pass", replicas=1))
    wait_for(lambda: state(scheduler, app_id) == "SUCCEEDED", 20, "its end")
    with pytest.raises(SystemExit):
        list(scheduler.log_iter(app_id, "main", 7))
    path = tmp_path / "runs" / app_id / "job.json"
    path.write_text(path.read_text()[:200])
    assert state(scheduler, app_id) == "UNKNOWN"
    assert [a.state for a in scheduler.list()] == [AppState.UNKNOWN]
    shutil.rmtree(tmp_path / "runs")
    assert scheduler.describe(app_id) is None
    assert scheduler.list() == []


def test_the_components_run_directory_is_the_jobs(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    ours = ft_app(str(tmp_path / "x.py"), run_dir=str(tmp_path / "mine"))
    assert run_dir_of(ours, {}) == str(tmp_path / "mine")
    assert run_dir_of(ours, {"run_dir": str(tmp_path / "mine")}) == str(tmp_path / "mine")
    with pytest.raises(ValueError, match="choose it by --run_dir"):
        run_dir_of(ours, {"run_dir": "elsewhere"})
    assert run_dir_of(app(""), {"run_dir": str(tmp_path)}) == str(tmp_path)


def test_how_one_more_group_is_started(scheduler: LocalFtScheduler, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    variables = {"MINE": "of ${replica_id}"}
    ours = ft_app(
        str(tmp_path / "x.py"), ["--as", "${replica_id}", "${app_id}"], replicas=3, max_restarts=4, env=variables
    )
    info = scheduler.submit_dryrun(ours, scheduler.run_opts().resolve({}))
    info.request.role_params["trainer"][0].env["CUDA_VISIBLE_DEVICES"] = "5"
    made = make_plan(ours, info.request, session="here", run_dir="/r", detach=True)
    assert (made.own_lighthouse, made.launcher, [r.kind for r in made.roles]) == (True, None, ["lighthouse", "trainer"])
    role = made.trainer
    assert (role.max_restarts, role.nodes, len(role.replicas)) == (4, 1, 3)
    assert role.template.args[3:6] == ("supervise", "--group", "${replica_id}")
    assert role.template.args[-3:] == ("--as", "${replica_id}", info.request.app_id)
    assert role.template.env["MINE"] == "of ${replica_id}"
    assert "CUDA_VISIBLE_DEVICES" not in role.template.env
    assert role.template.env["TORCHELASTIC_ERROR_FILE"].endswith("/trainer/${replica_id}/error.json")
    first = {k: v.replace("${replica_id}", "0") for k, v in role.template.env.items()}
    assert {**first, "CUDA_VISIBLE_DEVICES": "5"} == role.replicas[0].env
