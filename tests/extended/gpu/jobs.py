"""Checks of whole jobs on one card: the default scripts with two groups, one of which is killed.

TorchX isn't needed, as the supervisors are started here as TorchX would start them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from benchmarks.evidence.kill_report import death
from tests.events import commits, training_together, workers
from tests.extended.gpu.kit import Figures, Kit, need
from tests.started import ROOT, TORCHFT_X, Started
from tests.util import scaled
from torchft_x import env
from torchft_x.observe.events import read_events

SMALL = ["--width", "64", "--layers", "2", "--heads", "2", "--batch-size", "4", "--seq-len", "64", "--data-mb", "0.2"]
GROUPS = 2
GPU_TESTS = (
    "tests/torch/comm/test_gpu.py",
    "tests/torch/comm/quantized/test_collectives.py",
    "tests/torch/train/test_offload.py",
    "tests/torch/transfer/test_shared_memory.py",
)


class Job:
    """A lighthouse and a supervisor per group, which end with this process."""

    def __init__(self, kit: Kit, script: str, *arguments: str) -> None:
        self.run_dir = kit.folder / "run"
        self.log = kit.folder / "job.log"
        variables = {env.ADVERTISE_HOST: "127.0.0.1", env.TORCHX_JOB_ID: "local_cwd://gpu_check/job"}
        where = ["--run_dir", str(self.run_dir), "--launcher_pid", str(os.getpid())]
        groups = ",".join(map(str, range(GROUPS)))
        lighthouse = ["lighthouse", "--min_replicas", "1", "--job_groups", groups, "--job_min_replicas", "1", *where]
        command = [str(ROOT / script), "--device", kit.device.type, *SMALL, *arguments]
        supervise = ["--groups", str(GROUPS), *where, "--", *command]
        commands = [lighthouse, *(["supervise", "--group", str(group), *supervise] for group in range(GROUPS))]
        self.processes = [Started([*TORCHFT_X, *words], self.log, **variables) for words in commands]

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.processes:
            one.process.terminate()
        for one in self.processes:
            try:
                one.process.wait(15)
            except subprocess.TimeoutExpired:
                one.kill()

    def end(self) -> str:
        return self.log.read_text(errors="replace")[-1500:]

    def until(self, condition, seconds: float, what: str) -> None:
        deadline = time.monotonic() + scaled(seconds)
        while not condition():
            need(time.monotonic() < deadline, f"gave up after {seconds:g} s waiting for {what}: {self.end()}")
            running = [one.process.poll() is None for one in self.processes]
            need(all(running) or condition(), f"a process of the job ended before {what}: {self.end()}")
            time.sleep(0.05)

    def wait(self, seconds: float) -> None:
        """Wait for the job to end without error."""
        for one in self.processes:
            code = one.wait(seconds)
            need(code == 0, f"the job ended with {code}: {self.end()}")


def events(job: Job) -> list[dict]:
    return read_events(job.run_dir)


def kill_and_rejoin(kit: Kit) -> Figures:
    """Kill one of two groups on one device (SIGKILL). Check that the other goes on, it rejoins, and bits are equal."""
    dumps = kit.folder / "params"
    arguments = ["--steps", "600", "--pace", "0.02", "--dump-params", str(dumps)]
    with Job(kit, "benchmarks/trial/ddp.py", *arguments) as job:
        job.until(lambda: training_together(events(job), GROUPS) and len(commits(events(job))) > 60, 150, "training")
        victim = next(w for w in workers(events(job)) if w.group == "1")
        t = time.time()
        os.kill(victim.pid, signal.SIGKILL)
        job.until(lambda: death(events(job), "1", t).rejoined is not None, 90, "the group to be back")
        job.wait(90)
        cost = death(events(job), "1", t)
        check = [sys.executable, "-m", "benchmarks.evidence.check_params", str(dumps)]
        checked = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
        kit.figures |= {
            "kill to the survivor's next commit, s": cost.next_commit,
            "kill to the group's next commit, s": cost.rejoined,
            "steps dropped": cost.dropped,
            "check_params": checked.stdout.strip()[:300],
        }
        need(checked.returncode == 0, f"check_params: {checked.stdout[-800:]}{checked.stderr[-800:]}")
    return kit.figures


def hsdp_script(kit: Kit) -> Figures:
    """Run scripts/train_hsdp.py to its end: FSDP2 within a group, averaging between two."""
    return _script(kit, "scripts/train_hsdp.py", "--steps", "30")


def diloco_script(kit: Kit) -> Figures:
    """Run scripts/train_diloco.py to its end: groups that train apart, with quantised exchanges."""
    return _script(kit, "scripts/train_diloco.py", "--steps", "40", "--fault_tolerance.should_quantize=int8")


def _script(kit: Kit, script: str, *arguments: str) -> Figures:
    with Job(kit, script, *arguments) as job:
        job.wait(110)
        together = [e for e in commits(events(job)) if int(e.get("participants", 0)) == GROUPS]
        need(len(together) >= 3, f"only {len(together)} commits were of both groups: {job.end()}")
        said = [line for line in job.log.read_text(errors="replace").splitlines() if "between the groups" in line]
    if not kit.on_cpu:
        need(any(kit.device.type in line for line in said), f"the script did not say that it trains on {kit.device}")
    kit.figures |= {"commits of both groups": len(together), "said": said[:2]}
    return kit.figures


def gpu_tests(kit: Kit) -> Figures:
    """Run the tests that are marked ``gpu``; those for several cards are skipped."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-m", "gpu", "-p", "no:cacheprovider", *GPU_TESTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    kit.figures["pytest"] = (done.stdout.strip().splitlines() or [""])[-1]
    need(done.returncode == 0, f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-3000:]}")
    return kit.figures
