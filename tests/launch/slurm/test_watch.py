"""The watcher on a real Slurm, with parts that only sleep; and what it refuses without one."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import slurm  # noqa: F401
from tests.e2e.jobs import ROOT
from tests.slurm_cluster import SlurmCluster
from tests.util import scaled, wait_for
from torchft_x.core.slurm.manifest import Manifest, Part
from torchft_x.core.slurm.queue import Row
from torchft_x.core.slurm.state import told
from torchft_x.launch.slurm import store
from torchft_x.launch.slurm.controller import Controller
from torchft_x.launch.slurm.script import RoleScript, excluded, render, submission
from torchft_x.launch.slurm.submit import SupersededError, submit_parts
from torchft_x.launch.slurm.watch import watcher


def role(run_dir: Path, *options: str, kind: str = "trainer") -> RoleScript:
    logs = str(store.folder(run_dir) / "logs")
    return RoleScript(
        role="trainer", kind=kind, command=("sleep", "600"), env={}, run_dir=str(run_dir), log_dir=logs,
        folder=str(run_dir), options=options, python="true",
    )  # fmt: skip


def manifest(run_dir: Path, **changes: object) -> Manifest:
    """Two groups, whose lighthouse is somebody else's."""
    script = str(store.folder(run_dir) / "trainer.sh")
    parts = tuple(Part(role="trainer", kind="trainer", number=n, script=script) for n in range(2))
    made = Manifest(
        app=f"app-{run_dir.parent.name}", session="s", run_dir=str(run_dir), token_file=str(run_dir / "token"),
        log_dir=str(store.folder(run_dir) / "logs"), created=time.time(), retries=3, own_lighthouse=False, parts=parts,
    )  # fmt: skip
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def written(run_dir: Path, **changes: object) -> Manifest:
    made = manifest(run_dir, **changes)
    store.create(made)
    Path(made.parts[0].script).write_text(render(role(run_dir)))
    store.tell_groups(made)
    return made


@pytest.fixture
def watching(slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:  # noqa: F811
    """A job's run directory, with two watchers."""
    for name, value in slurm.environ.items():
        monkeypatch.setenv(name, value)
    made = written(tmp_path / "run")
    submit_parts(Controller(), made, made.parts)
    command = [sys.executable, "-m", "torchft_x", "slurm-watch", made.run_dir]
    with (tmp_path / "watch.log").open("wb") as log:
        watchers = [subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log) for _ in range(2)]
    try:
        yield tmp_path / "run"
    finally:
        store.change(made.run_dir, lambda now: dataclasses.replace(now, cancelled=True))
        Controller().cancel(store.read(made.run_dir).jobs)
        assert [one.wait(scaled(20)) for one in watchers] == [0, 0]  # the job is over


@pytest.mark.slow
def test_a_killed_part_is_submitted_anew_and_a_cancelled_one_is_respected(watching: Path, slurm: SlurmCluster) -> None:  # noqa: F811
    controller = Controller()

    def states() -> list[str]:
        rows = {row.job: row for row in controller.rows()}
        return [told(rows.get(part.job)).state for part in store.read(watching).groups]

    wait_for(lambda: states() == ["RUNNING", "RUNNING"], 30, "both groups to run")
    log = watching.parent / "watch.log"
    wait_for(lambda: "watches over" in log.read_text(), 20, "a watcher")
    first = store.read(watching).groups

    def sleepers() -> list[int]:
        alive = [pid for pid in slurm.processes() if _words(pid) == ["sleep", "600"]]
        return [pid for pid in alive if _variable(pid, "number") == "1"]

    sleeper = wait_for(sleepers, 20, "group 1's process, which comes after Slurm has said so")[0]
    subprocess.run(["kill", "-9", str(sleeper)], check=True)
    wait_for(lambda: store.read(watching).groups[1].earlier == (first[1].job,), 30, f"another job: {log.read_text()}")
    wait_for(lambda: states() == ["RUNNING", "RUNNING"], 30, "it to run")
    assert store.read(watching).groups[0] == first[0]

    slurm.run("scancel", first[0].job)
    wait_for(lambda: "0" in store.lost_groups(watching), 30, "the lighthouse to be told")
    assert "cancelled" in store.lost_groups(watching)["0"]
    assert store.read(watching).groups[0] == first[0]
    said = log.read_text()
    assert said.count("submitted anew") == 1  # by one of the two
    assert "trainer/1: its job" in said
    assert "exit code 137; submitted anew as job" in said


@pytest.mark.slow
def test_a_round_of_the_scheduler_is_asked_for_and_the_job_stays_as_it_is(
    slurm: SlurmCluster,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in slurm.environ.items():
        monkeypatch.setenv(name, value)
    controller = Controller()
    made = written(tmp_path / "run")
    script = render(role(tmp_path / "run", "--begin=now+3600"))
    text = submission(script, app=made.app, role="trainer", ticket="t", run_dir=made.run_dir, numbers=[0, 1])
    job = f"{controller.submit(text)}_1"

    def row() -> Row:
        return next(row for row in controller.rows(app=made.app) if row.job == job)

    before = row()
    assert controller.reschedule(job, f"{made.app}-trainer")
    assert row() == before
    controller.cancel([job.partition("_")[0]])
    wait_for(lambda: not controller.reschedule(job, f"{made.app}-trainer"), 10, "Slurm to say that it waits no longer")


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def _variable(pid: int, name: str) -> str:
    pairs = (pair.partition("=") for pair in Path(f"/proc/{pid}/environ").read_text().split("\0"))
    return next((value for key, _, value in pairs if key == name), "")


def test_who_was_quicker_is_not_undone(tmp_path: Path) -> None:
    """Slurm is not even asked."""
    before = written(tmp_path / "run")
    store.change(before.run_dir, lambda now: now.with_part(dataclasses.replace(now.parts[1], job="7_1", ticket="t")))
    with pytest.raises(SupersededError, match="trainer/1 was submitted by somebody else: it is the job 7_1 now"):
        submit_parts(Controller(), before, [before.parts[1]])
    assert store.read(before.run_dir).parts[1].job == "7_1"


def test_nodes_are_excluded_besides_those_of_the_user(tmp_path: Path) -> None:
    plain, own = (render(role(tmp_path, *options)) for options in ((), ("--exclude=n[1-2]",)))
    assert (excluded(plain), excluded(own)) == ([], ["n[1-2]"])
    for script, expected in ((plain, "--exclude=n3,n4"), (own, "--exclude=n[1-2],n3,n4")):
        text = submission(script, app="a", role="trainer", ticket="t", run_dir="/r", numbers=[1], exclude=["n3", "n4"])
        assert [line for line in text.splitlines() if "--exclude" in line] == [f"#SBATCH {expected}"]
    assert "--exclude=n[1-2]\n" in submission(own, app="a", role="trainer", ticket="t", run_dir="/r", numbers=[1])


def test_no_job_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert watcher.main("slurm-watch", [str(tmp_path)]) == 2
    assert "no job of slurm_ft has that run directory" in capsys.readouterr().err


@pytest.mark.parametrize("how", [{"cancelled": True}, {"outcome": 0}])
def test_a_job_that_is_over_needs_no_slurm(tmp_path: Path, how: dict[str, object]) -> None:
    made = written(tmp_path / "run", **how)
    assert watcher.main("slurm-watch", [made.run_dir]) == 0


def test_watchers_run_beside_the_lighthouse_and_the_first_groups(tmp_path: Path) -> None:
    for kind, wanted in (("lighthouse", True), ("trainer", True), ("sidecar", False), ("", False)):
        assert ("slurm-watch" in render(role(tmp_path, kind=kind))) is wanted
