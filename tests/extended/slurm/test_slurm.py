"""Jobs of the stock `slurm` scheduler on a real Slurm: what one death does, and what is left afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.events import training_together
from tests.extended.slurm.cluster import SlurmCluster
from tests.extended.slurm.job import SlurmJob, folder_with_the_same_port
from tests.journeys.jobs import SMALL, TOGETHER
from tests.journeys.test_kills import script as check
from tests.process.launch.slurm_script import NASTY, script
from tests.started import ROOT, gone
from tests.util import wait_for
from torchft_x.observe.processes import job_processes

pytestmark = [pytest.mark.timeout(300)]


class HeterogeneousJob(SlurmJob):
    """A job submitted with `torchx run`, in whose folder its output appears."""

    def __init__(self, cluster: SlurmCluster, number: str, folder: Path) -> None:
        super().__init__(cluster, folder)
        self.number = number

    def files(self, name: str = "*") -> list[Path]:
        return sorted(self.folder.glob(f"slurm-{self.number}-{name}.*"))

    def supervisor(self, group: str) -> int:
        mine = (e for e in reversed(self.events()) if e.get("role") == "supervisor" and e.get("group") == group)
        return int(next(mine)["pid"])

    def end(self, seconds: float) -> str:
        """Wait until all components have ended; return the state that all are in."""
        running = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}
        self.wait_for(lambda: not running & set(self.cluster.states(self.number).values()), seconds, "the job's end")
        (state,) = set(self.cluster.states(self.number).values())
        return state


Submit = Callable[..., HeterogeneousJob]


@pytest.fixture
def submit(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Submit]:
    """Submits as a user does; whatever is left at the end is cancelled."""
    submitted: list[HeterogeneousJob] = []

    def run(
        *script_args: str | Path, cpu: int = 1, options: Sequence[str] = (), folder: Path = tmp_path
    ) -> HeterogeneousJob:
        run_dir = folder / "run"
        component = ["-s", "slurm", "--workspace", "", str(ROOT / "components.py:ddp"), "--run_dir", str(run_dir)]
        sizes = ["--script", str(ROOT / "benchmarks/trial/ddp.py"), "--cpu", str(cpu), "--memMB", "1000"]
        words = [*component, *sizes, *options, "--", *map(str, (*script_args, *SMALL))]
        torchx = (sys.executable, "-m", "torchx.cli.main", "run")
        done = slurm.try_run(*torchx, *words, cwd=folder, env={"PYTHONPATH": str(ROOT)})
        # Its exit code says nothing: without slurmdbd the look at the job's state that follows ends in a traceback.
        handle = re.search(r"^slurm://\S+/(\d+)$", done.stdout, re.MULTILINE)
        assert handle is not None, done.stdout + done.stderr
        submitted.append(HeterogeneousJob(slurm, handle[1], folder))
        return submitted[-1]

    yield run
    for job in submitted:
        slurm.run("scancel", job.number)
        job.kill()


def test_a_killed_worker_comes_back_to_the_group_that_stays(submit: Submit, tmp_path: Path) -> None:
    job = submit("--steps", "200", "--pace", "0.02", "--dump-params", tmp_path / "dumps", options=TOGETHER)
    job.wait_until_training()
    (one, other) = (job.worker("1"), job.worker("0"))
    os.kill(one, signal.SIGKILL)
    job.wait_for(lambda: job.worker("1") != one and training_together(job.events(), 2), 60, "group 1 is back")
    assert job.worker("0") == other
    assert job.end(120) == "COMPLETED"
    assert "restart 1 of 10" in job.output("trainer-1")
    assert re.search(r"step +200 \| loss .* groups 2", job.output("trainer-0"))
    assert "All 2 groups finished." in job.output("lighthouse-0")
    checked = check("check_params", tmp_path / "dumps")
    assert checked.returncode == 0, checked.stdout
    gone(job.run_dir, 10)


def test_a_killed_supervisor_is_the_end_of_its_group_only(submit: Submit) -> None:
    """The lighthouse, which runs beside group 0, lives on."""
    job = submit("--steps", "1500")
    job.wait_until_training()
    worker = job.worker("0")
    os.kill(job.supervisor("0"), signal.SIGKILL)
    job.wait_for(lambda: worker not in job_processes(job.run_dir), 10, "the end of its worker")
    assert set(job.cluster.states(job.number).values()) == {"RUNNING"}
    assert job.end(120) == "FAILED"
    assert job.cluster.exit_code(job.number) == 137  # the highest of the components': 128 + SIGKILL
    assert re.search(r"step +1500 \|", job.output("trainer-?"))  # the survivor has finished
    assert re.search(r"[Gg]roup 0\b.*(lost|gone|died|supervisor)", job.output("lighthouse-0"))
    gone(job.run_dir, 10)


def test_nothing_is_left_after_scancel(submit: Submit) -> None:
    job = submit("--steps", "100000")
    job.wait_until_training()
    assert len(job_processes(job.run_dir)) >= 5  # lighthouse, two supervisors, two workers at least
    job.cluster.run("scancel", job.number)
    gone(job.run_dir, 15)
    assert job.end(30) == "CANCELLED"


def test_two_jobs_with_lighthouses_on_one_host(submit: Submit, tmp_path: Path) -> None:
    """S4: a port that followed from the run directory would be the same for both."""
    first = submit("--steps", "100000")
    first.wait_until_training()
    second = submit("--steps", "20", options=TOGETHER, folder=folder_with_the_same_port(tmp_path))
    assert second.end(120) == "COMPLETED", second.output()
    assert "is taken" not in second.output()
    assert set(first.cluster.states(first.number).values()) == {"RUNNING"}


def test_a_node_that_dies_ends_the_job_at_once_and_for_good(submit: Submit) -> None:
    """Slurm's heterogeneous jobs share one fate. Asked to start them again it would leave half of them pending."""
    job = submit("--steps", "100000", cpu=8)  # a node each
    job.wait_until_training()
    lines = job.cluster.run("squeue", "-h", "-j", job.number, "-o", "%j %N").splitlines()
    node = dict(line.split() for line in lines)["trainer-1"]
    job.cluster.set_down(node)
    try:
        assert job.end(60) == "NODE_FAIL"
        wait_for(lambda: "NODE FAILURE" in job.output(), 10, "Slurm's reason in the output")
        gone(job.run_dir, 15)
    finally:
        job.cluster.resume(node)


def run_to_its_end(slurm: SlurmCluster, folder: Path, script: str, code: int = 0) -> str:
    """Submit a batch script that ends with this exit code; return the job's number."""
    (folder / "script.sh").write_text(script)
    done = slurm.try_run("sbatch", "--wait", "--parsable", "script.sh", cwd=folder)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.strip()


def test_values_and_resources_arrive(slurm: SlurmCluster, tmp_path: Path) -> None:
    write = "import json,os,sys; json.dump([dict(os.environ), sys.argv[2:]], open(sys.argv[1] + os.environ['KIND'] + os.environ['ID'], 'w'))"
    words = [*NASTY.values(), "${app_id}"]
    text = script([sys.executable, "-c", write, f"{tmp_path}/dump-", *words], env=NASTY, gpu=2)
    number = run_to_its_end(slurm, tmp_path, text)
    for replica in ("0", "1"):
        environ, argv = json.loads((tmp_path / f"dump-trainer{replica}").read_text())  # the lighthouse gets options
        assert {name: environ.get(name) for name in NASTY} == NASTY
        assert argv == [*NASTY.values(), number]
    assert environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert environ["SLURM_CPUS_PER_TASK"] == "2"


@pytest.mark.parametrize("codes", [{"lighthouse1": 3, "trainer1": 1}, {"lighthouse0": 1, "trainer0": 3}])
def test_lighthouses_run_beside_trainers_and_the_highest_exit_code_counts(
    slurm: SlurmCluster, tmp_path: Path, codes: dict[str, int]
) -> None:
    """Each writes to a file of its own."""
    say = "import json,os,sys; me = os.environ['KIND'] + os.environ['ID']; print(me); sys.exit(json.loads(sys.argv[1]).get(me, 0))"
    text = script([sys.executable, "-c", say, json.dumps(codes)], lighthouses=2)
    number = run_to_its_end(slurm, tmp_path, text, code=3)
    for name in ("lighthouse-0", "lighthouse-1", "trainer-0", "trainer-1"):
        written = (tmp_path / f"slurm-{number}-{name}.out").read_text()
        assert written == name.replace("-", "") + "\n"
