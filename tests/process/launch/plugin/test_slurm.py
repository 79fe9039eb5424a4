"""TorchX's interface of slurm_ft, with recorded answers of Slurm's; real jobs are in tests/extended/slurm/test_slurm_ft.py."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torchx.specs import AppState

from tests.process.launch.slurm.test_lost_answers import SCRIPT, Cluster
from tests.started import ROOT
from tests.unit.launch.lines import BOTH, torchx
from torchft_x import env
from torchft_x.launch.job.build import ft_app
from torchft_x.launch.plugin.slurm import SlurmFtScheduler, create_scheduler
from torchft_x.launch.slurm import store


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv(env.STATE_HOME, str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return Cluster(tmp_path / "bin", monkeypatch)


def submit(scheduler: SlurmFtScheduler, run_dir: Path) -> str:
    app = ft_app(str(SCRIPT), replicas=2, run_dir=str(run_dir))
    return str(scheduler.schedule(scheduler.submit_dryrun(app, scheduler.run_opts().resolve({}))))


def turn(cluster: Cluster, *changes: tuple[str, str]) -> None:
    """In the queue."""
    path = cluster.folder / "queue"
    text = path.read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path.write_text(text)


def report(run_dir: Path, *came: str, silent: str = "") -> None:
    """Write the watchers' note: the supervisors of these parts have reported, and one is silent."""
    jobs = {part.name: part.job for part in store.read(run_dir).parts}
    parts = {
        name: {
            "start": [jobs[name], 0], "came": [0], "nodes": ["n1"], "excluded": [], "submitted": [],
            "silent_since": 1.0 if name == silent else None,
        }
        for name in came
    }  # fmt: skip
    store.replace(store.folder(run_dir) / store.WATCHER, json.dumps({"note": "w 1", "parts": parts}))


def test_a_group_runs_when_it_was_heard_of(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app_id = submit(create_scheduler("here"), tmp_path / "run")
    turn(cluster, ("|PENDING|0||", "|RUNNING|0|n1|"))

    def states() -> tuple[AppState, list[AppState], str]:
        found = create_scheduler("another").describe(app_id)
        assert found is not None
        return found.state, [replica.state for replica in found.roles_statuses[0].replicas], found.msg

    state, replicas, message = states()
    assert (state, replicas) == (AppState.PENDING, [AppState.PENDING, AppState.PENDING])
    assert "trainer/1 (3_1): Slurm has run it on n1 since N/A, and nobody has heard of its supervisor yet." in message
    with monkeypatch.context() as command:
        command.setattr("sys.excepthook", sys.excepthook)  # which `torchx log` replaces
        command.setattr("torchft_x.launch.schedulers.excepthook.in_command", lambda name: name == "log")
        assert states()[0] == AppState.RUNNING  # of one that waits no log is shown

    report(tmp_path / "run", "trainer/0")
    assert states()[:2] == (AppState.RUNNING, [AppState.RUNNING, AppState.PENDING])
    report(tmp_path / "run", "trainer/0", "trainer/1", silent="trainer/1")
    state, replicas, message = states()
    assert (state, replicas) == (AppState.RUNNING, [AppState.RUNNING, AppState.PENDING])
    assert "trainer/1 (3_1): its supervisor has been silent since" in message
    store.tell_groups(store.read(tmp_path / "run"), {"1": "its node is lost, after 3 submissions within an hour"})
    state, replicas, message = states()
    assert (state, replicas) == (AppState.RUNNING, [AppState.RUNNING, AppState.FAILED])
    assert "it is given up: its node is lost" in message
    store.change(tmp_path / "run", lambda now: dataclasses.replace(now, own_lighthouse=False))
    assert states()[1] == [AppState.RUNNING, AppState.RUNNING]  # nobody but Slurm knows


def test_a_job_as_torchx_sees_it(cluster: Cluster, tmp_path: Path) -> None:
    app_id = submit(create_scheduler("here", torchx_unknown="1"), tmp_path / "run")
    running = [("|PENDING|0||", "|RUNNING|0|n1|")]
    gap = ("3_1|3|0|RUNNING|0|n1|N/A|None|", "3_1|3|2|PENDING|0||N/A|BeginTime|")
    turn(cluster, *running, gap)
    report(tmp_path / "run", "trainer/0")
    found = create_scheduler("another").describe(app_id)
    assert found is not None
    assert (found.state, found.num_restarts) == (AppState.RUNNING, 2)
    ((whole, again),) = (role.replicas for role in found.roles_statuses)
    assert (whole.state, whole.hostname) == (AppState.RUNNING, "n1")
    assert again.state == AppState.PENDING  # not FAILED, whatever has happened to it
    assert json.loads(again.structured_error_msg)["message"]["message"] == "restarts: 2, restarting (BeginTime)"
    assert "trainer/1 (3_1): restarting (BeginTime)." in found.msg
    assert found.ui_url == f"file://{tmp_path / 'run'}"
    assert [(a.app_id, a.state) for a in create_scheduler("a").list()] == [(app_id, AppState.RUNNING)]

    turn(cluster, ("3_1|3|2|PENDING|0||", "3_1|3|2|FAILED|256|n3|"))
    found = create_scheduler("another").describe(app_id)
    assert found is not None
    assert "trainer-1.3_1.slurm.log" in found.msg  # where to look

    scheduler = create_scheduler("b")
    scheduler.cancel(app_id)
    assert cluster.cancelled == ["3_0", "3_1"]
    assert [a.state for a in scheduler.list()] == [AppState.CANCELLED]
    scheduler.cancel(app_id)


def test_a_failed_job_says_why_and_what_is_left_of_it_is_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    app_id = submit(create_scheduler("here"), tmp_path / "run")
    why = "1 of 2 groups finished, but group 1 gave up."
    store.change(tmp_path / "run", lambda now: dataclasses.replace(now, outcome=1, why=why))
    scheduler = create_scheduler("another")
    found = scheduler.describe(app_id)
    assert found is not None
    assert (found.state, found.msg.endswith(why)) == (AppState.FAILED, True)
    scheduler.cancel(app_id)
    assert cluster.cancelled == ["3_0", "3_1"]


def test_output_of_all_attempts_in_their_order(cluster: Cluster, tmp_path: Path) -> None:
    scheduler = create_scheduler("here")
    app_id = submit(scheduler, tmp_path / "run")
    part = store.read(tmp_path / "run").parts[1]
    later = dataclasses.replace(part, job="11_1", earlier=("3_1",))
    store.change(tmp_path / "run", lambda now: dataclasses.replace(now.with_part(later), outcome=0))
    turn(cluster, ("|PENDING|", "|COMPLETED|"))
    logs = tmp_path / "run/slurm/logs"
    for name, text in (("11_1-r0", "third"), ("3_1-r10", "second\nno line end"), ("3_1-r2", "first")):
        (logs / f"trainer-1-0.{name}.log").write_text(text + "\n" * ("end" not in text))
    (logs / "trainer-11-0.3_11-r0.log").write_text("another's\n")
    scheduler = create_scheduler("another")
    assert list(scheduler.log_iter(app_id, "trainer", 1)) == ["first\n", "second\n", "no line end\n", "third\n"]
    (logs / "lighthouse-1-0.11_1-r0.log").write_text("stands by\n")  # beside group 1
    assert list(scheduler.log_iter(app_id, "lighthouse", 1)) == ["stands by\n"]
    assert list(scheduler.log_iter(app_id, "trainer", 1, should_tail=True, regex="^[st]")) == ["second\n", "third\n"]
    with pytest.raises(SystemExit):
        scheduler.log_iter(app_id, "trainer", 7)
    with pytest.raises(SystemExit):
        scheduler.log_iter("nobody", "trainer", 0)


def ft(line: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of TorchX, of one of its lines, in a process of its own."""
    variables = {"PYTHONPATH": str(ROOT), env.STATE_HOME: str(folder / "state")}
    done = torchx(*words, cwd=folder, line=line, ft=True, **variables)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("line", BOTH)
def test_every_command_on_both_lines(line: str, cluster: Cluster, tmp_path: Path) -> None:
    def say(*words: str) -> str:
        done = ft(line, tmp_path, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run_dir = tmp_path / "run"
    job = [str(ROOT / "components.py:ddp"), "--script", str(SCRIPT), "--run_dir", str(run_dir)]
    handle = say("run", "-s", "slurm_ft", "--workspace", "", *job).split()[-1]
    turn(cluster, ("|PENDING|0||", "|RUNNING|0|n1|"))
    report(run_dir, "trainer/0", "trainer/1")
    (run_dir / "slurm/logs/trainer-1-0.3_1-r0.log").write_text("first\n")
    assert "State: RUNNING" in say("status", handle)
    assert re.search(rf"{handle}\s+RUNNING", say("list", "-s", "slurm_ft"))
    assert say("log", handle) == "trainer/1 first\n"
    assert "'num_replicas': 2" in say("describe", handle)
    store.change(run_dir, lambda now: dataclasses.replace(now, outcome=1, why="group 1 gave up."))
    turn(cluster, ("|RUNNING|0|n1|", "|PENDING|0||"))
    assert re.search(r"State: FAILED(.|\n)*Msg: .*group 1 gave up\.", say("status", handle))
    say("cancel", handle)  # also of a job that has failed: what is left of it
    assert cluster.cancelled == ["3_0", "3_1"]


@pytest.mark.parametrize("line", BOTH)
def test_titan_in_a_batch_script(line: str, tmp_path: Path) -> None:
    job = [str(ROOT / "components.py:titan"), "--run_dir", str(tmp_path / "run"), "--config", "mine"]
    said = ft(line, tmp_path, "run", "-s", "slurm_ft", "--dryrun", "--workspace", "", *job, "--", "--a.b", "3").stdout
    assert "export JE_ARROW_MALLOC_CONF=background_thread:false" in said
    (command,) = re.findall("^exec .*supervise.*$", said, re.MULTILINE)
    assert " -m torchft_x.compat -m torchft_x supervise " in command
    assert command.endswith(" -- -m torchft_x.compat.titan --module torchft.llama3 --config mine --a.b 3")


@pytest.mark.parametrize("line", BOTH)
def test_where_there_is_no_slurm(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    job = [str(ROOT / "components.py:ddp"), "--script", str(SCRIPT), "--run_dir", str(tmp_path / "run")]
    dry = ft(line, tmp_path, "run", "-s", "slurm_ft", "--dryrun", "--workspace", "", *job)
    assert "#SBATCH --array=0-1" in dry.stdout, dry.stderr
    for words in (
        ["run", "-s", "slurm_ft", "--workspace", "", *job],
        ["run", "-s", "slurm_ft", "-cfg", "sbatch_args=--nice=1", *job],
        ["log", "slurm_ft://torchx/some-job"],
    ):
        done = ft(line, tmp_path, *words)
        assert done.returncode == 2, done.stdout + done.stderr
        assert done.stderr.splitlines()[-1].startswith("torchft_x: ")
    assert not (tmp_path / "run").exists()
    status = ft(line, tmp_path, "status", "slurm_ft://torchx/some-job")
    assert "squeue is not on" in status.stdout
