"""Jobs of slurm_ft on a real Slurm: what TorchX's commands say and do from another shell, and what one death costs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.events import commits, workers
from tests.extended.slurm.cluster import SlurmCluster
from tests.extended.slurm.job import SlurmJob, folder_with_the_same_port
from tests.journeys.jobs import SMALL, TOGETHER, WARM
from tests.started import ROOT, gone
from tests.unit.launch.lines import TORCHX_FT
from tests.util import wait_for
from torchft_x import env
from torchft_x.launch.slurm import store

pytestmark = [pytest.mark.timeout(300)]


class Shell(SlurmJob):
    """A user's, somewhere on the cluster, with one job; each command is a process of its own."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        super().__init__(cluster, folder)
        self.environ = {"PYTHONPATH": str(ROOT), env.STATE_HOME: str(folder / "state"), **WARM}
        self.handle = ""

    def torchx(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._python("-c", TORCHX_FT, *words)

    def ours(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._python("-m", "torchft_x", *words)

    def _python(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = self.cluster.try_run(sys.executable, *words, cwd=self.folder, env=self.environ, timeout=90)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def run(
        self, *script_args: str, component: str = "ddp", cfg: str = "", options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        words = ["run", "-s", "slurm_ft", *(["-cfg", cfg] if cfg else []), "--workspace", ""]
        words += [str(ROOT / f"components.py:{component}"), "--run_dir", str(self.run_dir)]
        words += ["--cpu", "1", "--memMB", "1000"]
        words += ["--script", str(ROOT / f"benchmarks/trial/{component}.py"), *options, "--", *script_args, *SMALL]
        done = self.torchx(*words)
        found = re.search(r"^slurm_ft://\S+$", done.stdout, re.MULTILINE)
        self.handle = found[0] if found else ""
        return done

    def part_status(self) -> str:
        """Return the state that `torchx status` prints."""
        said = self.torchx("status", self.handle).stdout
        found = re.search(r"State: (\w+)", said)
        assert found is not None, said
        return found[1]

    def wait_until_over(self) -> None:
        self.wait_for(lambda: not self.queued(), 120, "the job's end")

    def queued(self) -> list[str]:
        return self.cluster.run("squeue", "-h", "-r", "-o", "%i").split()


@pytest.fixture
def shell(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Shell]:
    made = Shell(slurm, tmp_path)
    yield made
    if left := made.queued():
        slurm.run("scancel", *left)
    made.kill()
    wait_for(lambda: not made.queued(), 30, "an empty queue")


@pytest.mark.parametrize("tls", ["off", "on"])
def test_from_the_submission_to_the_cancel(shell: Shell, tls: str) -> None:
    done = shell.run("--steps", "100000", "--pace", "0.05", cfg="exclusive=True", options=("--tls", tls))
    assert (done.returncode, bool(shell.handle)) == (0, True), done.stdout + done.stderr
    shell.wait_until_training()
    wait_for(lambda: shell.part_status() == "RUNNING", 60, "a watcher to hear of a group")
    assert re.search(rf"{re.escape(shell.handle)}\s+RUNNING", shell.torchx("list", "-s", "slurm_ft").stdout)
    array = {job.partition("_")[0] for job in shell.queued()}
    assert (len(shell.queued()), len(array)) == (2, 1)  # both groups are an array, and bring the lighthouse along

    (one, other) = (shell.worker("1"), shell.worker("0"))
    os.kill(one, signal.SIGKILL)
    wait_for(lambda: shell.worker("1") != one, 60, "group 1's next worker")
    shell.wait_until_training(after=time.time())
    assert shell.worker("0") == other
    wait_for(lambda: "restart 1 of 10" in shell.output(), 10, "what the supervisor says of it")
    assert "launching trainer 1 (attempt 0)" in shell.output()

    group = store.read(shell.run_dir).parts[1]
    node = shell.cluster.run("squeue", "-h", "-j", group.job, "-o", "%N")
    shell.cluster.set_down(node)
    down = time.time()
    try:
        assert shell.part_status() == "RUNNING"
        shell.wait_until_training(after=down)
        assert shell.cluster.run("squeue", "-h", "-j", group.job, "-o", "%N") != node
    finally:
        shell.cluster.resume(node)
    assert shell.worker("0") == other  # nobody else was touched

    assert "it had 2" in shell.ours("scale", str(shell.run_dir), "--replicas", "3").stdout
    wait_for(lambda: max(commits(shell.events()), key=lambda e: e["t"])["participants"] == 3, 90, "three groups")
    assert len(shell.queued()) == 3
    assert "3 of 3 groups train" in shell.ours("status", str(shell.run_dir), "--once").stdout
    assert "it had 3" in shell.ours("scale", str(shell.run_dir), "--replicas", "2").stdout
    wait_for(lambda: len(shell.queued()) == 2, 60, "the end of group 2's job")
    status = lambda: shell.ours("status", str(shell.run_dir), "--once").stdout  # noqa: E731
    wait_for(lambda: "2 of 2 groups train" in status(), 30, "two groups")
    assert "between 1" in shell.ours("scale", str(shell.run_dir), "--replicas", "0").stderr
    assert shell.worker("0") == other

    assert shell.torchx("cancel", shell.handle).returncode == 0
    wait_for(lambda: not shell.queued(), 60, "an empty queue")
    gone(shell.run_dir, 10)
    assert shell.part_status() == "CANCELLED"
    assert shell.torchx("cancel", shell.handle).returncode == 0  # again: no mistake
    assert "it was cancelled" in shell.ours("status", str(shell.run_dir)).stdout
    assert "it was cancelled" in shell.ours("report", str(shell.run_dir)).stdout
    assert "has ended" in shell.ours("scale", str(shell.run_dir), "--replicas", "3").stderr


def test_a_job_that_finishes_has_succeeded_and_its_output_can_be_read(shell: Shell) -> None:
    shell.run("--steps", "20", options=TOGETHER)
    shell.wait_until_over()
    assert shell.part_status() == "SUCCEEDED", shell.output()
    said = shell.torchx("log", shell.handle + "/trainer/0")
    assert re.search(r"step +20 \| loss .* groups 2", said.stdout), said.stdout + said.stderr
    for path in shell.files():
        assert path.stat().st_size or path.name.startswith("trainer-1-"), path  # group 1's workers say nothing
    gone(shell.run_dir, 10)
    again = shell.run("--steps", "20", cfg="partition=nowhere")
    assert (again.returncode, shell.handle) == (2, "")
    assert "partition=nowhere: there is none" in again.stderr


def test_a_job_in_the_run_directory_of_one_that_has_finished_trains(shell: Shell) -> None:
    for steps in ("20", "30"):
        began = time.time()
        assert shell.run("--steps", steps, options=TOGETHER).returncode == 0
        shell.wait_until_over()
        assert shell.part_status() == "SUCCEEDED", shell.output()
        assert max(e["step"] for e in commits(shell.events()) if e["t"] > began) == int(steps) - 1


def test_two_jobs_on_the_same_host(shell: Shell) -> None:
    """S4: a port that followed from the run directory would be the same for both."""
    shell.run("--steps", "100000")
    shell.wait_until_training()
    second = Shell(shell.cluster, folder_with_the_same_port(shell.folder))
    second.run("--steps", "20", options=TOGETHER)
    second.wait_for(lambda: second.part_status() == "SUCCEEDED", 120, "the end of the second job")
    assert "is taken" not in second.output()
    assert shell.part_status() == "RUNNING"


def test_a_group_over_two_nodes(shell: Shell) -> None:
    sizes = ("--nodes_per_replica", "2", "--workers_per_replica", "2", "--replicas", "1")
    done = shell.run("--steps", "20", options=sizes)
    assert done.returncode == 0, done.stderr
    shell.wait_until_over()
    assert shell.part_status() == "SUCCEEDED", shell.output()
    names = {path.name.partition(".")[0] for path in shell.files("*-r0.log")}
    assert names == {"lighthouse-0-0", "trainer-0-0", "trainer-0-1"}


def test_groups_of_different_sizes_are_arrays_of_their_own_and_train_together(shell: Shell) -> None:
    sizes = ("--replicas", "3", "--islands", "1,2,1", "--min_replicas", "3", "--sync_steps", "5")
    done = shell.run("--steps", "40", component="diloco", options=(*sizes, "--env", "TORCHFT_QUORUM_TIMEOUT_SEC=200"))
    assert done.returncode == 0, done.stdout + done.stderr
    groups = [part.job.partition("_") for part in store.read(shell.run_dir).parts]
    assert [task for _, _, task in groups] == ["0", "1", "2"]
    assert groups[0][0] == groups[2][0]  # those alike are one array
    assert len({array for array, _, _ in groups}) == 2
    shell.wait_until_over()
    assert shell.part_status() == "SUCCEEDED", shell.output()
    assert {(str(w.group), w.rank) for w in workers(shell.events())} >= {("0", 0), ("1", 0), ("2", 0)}
    assert max(e["participants"] for e in commits(shell.events())) == 3
    gone(shell.run_dir, 10)
