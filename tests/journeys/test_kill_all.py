"""kill -9 of all workers of all groups at once: the supervisors hold the state, and the job goes on from it (decision 51)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.jobs import SMALL, WARM, Job, running
from tests.journeys.test_hsdp import hsdp
from tests.journeys.test_kills import script
from tests.util import scaled

pytestmark = [pytest.mark.timeout(300)]


def kill_all(job: Job) -> float:
    """All workers of the newest attempt of each group; when that was (unix seconds)."""
    newest = {(e["group"], e.get("rank", 0)): e["pid"] for e in job.events() if e["event"] == "joined" and "pid" in e
              and e["role"] == "trainer"}  # fmt: skip
    began = time.time()
    for pid in newest.values():
        with contextlib.suppress(ProcessLookupError):  # its supervisor was quicker: another rank had just been killed
            os.kill(pid, signal.SIGKILL)
    return began


def after(job: Job, began: float, name: str, attempt: int) -> list[dict[str, Any]]:
    """Events after that, of all groups' attempts with this number.

    The older attempts may still commit while `kill_all` kills one process after the other.
    """
    return [e for e in job.events() if e["event"] == name and e["t"] > began and e.get("attempt") == attempt]


def last_step(job: Job) -> int:
    return max(int(e["step"]) for e in job.events() if e["event"] == "commit") + 1


def killed(command: list[str], folder: Path, run_dir: Path, ranks: int, *, attempts: int, **variables: str) -> None:
    """All workers, in each of the first `attempts`."""

    def dumped(attempt: int) -> set[str]:
        return {dump.name.split("-a")[0] for dump in (folder / "dumps").glob(f"*-a{attempt}-*.bin")}

    with running(command, folder / "log", run_dir, **variables) as job:
        job.wait_until_training(2, 120)
        for attempt in range(1, attempts + 1):
            if variables:
                job.wait_for(lambda: sum(e["event"] == "warm" for e in job.events()) >= 2, 120, "both warm parents")
            job.wait_for(lambda n=attempt: len(after(job, 0.0, "held", n - 1)) > 4 * ranks * n, 60, "some copies")
            began = kill_all(job)
            reached = last_step(job)
            job.wait_for(
                lambda t=began, n=attempt: any(e["participants"] == 2 for e in after(job, t, "commit", n)),
                60,
                "the next commit",
            )
            restored = after(job, began, "restored", attempt)
            assert len(restored) == 2 * ranks
            steps = {e["group"]: e["step"] for e in restored}
            assert len({(e["group"], e["step"]) for e in restored}) == 2  # the ranks of a group go on from one step
            first = after(job, began, "commit", attempt)[0]
            assert first["step"] == max(steps.values())
            assert 0 < reached - first["step"] + 1 < 60
            job.wait_for(lambda n=attempt: len(dumped(n)) == 2 * ranks, 60, "a dump of each rank")
            print(f"attempt {attempt}: {first['t'] - began:.2f} s to the next commit, {reached - first['step']} back")
        job.process.send_signal(signal.SIGINT)
        job.process.wait(scaled(30))
    for attempt in range(attempts + 1):  # a step that was lost is made again, perhaps with one group's gradients
        (folder / str(attempt)).mkdir()
        for dump in (folder / "dumps").glob(f"*-a{attempt}-*"):
            dump.rename(folder / str(attempt) / dump.name)
        checked = script("check_params", folder / str(attempt))
        assert checked.returncode == 0, checked.stdout


def test_two_sharded_groups_of_two(tmp_path: Path) -> None:
    """Kill all once. tests/extended/jobs/test_diloco.py does it twice in a row."""
    run_dir = tmp_path / "run"
    args = ("--steps", "100000", "--pace", "0.06", "--dump-params", str(tmp_path / "dumps"), *SMALL)
    killed(hsdp(run_dir, 2, 2, *args), tmp_path, run_dir, ranks=2, attempts=1, **WARM)
