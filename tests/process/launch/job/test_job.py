"""Whole jobs by the real `torchx run`, with toy scripts that know nothing of us: what a launcher owes, and no more."""

from __future__ import annotations

import os
import re
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.started import BIN, Started, ended, environment, gone
from tests.util import clock, wait_for
from torchft_x import env
from torchft_x.launch.process import process_tree
from torchft_x.observe.events import read_events
from torchft_x.observe.processes import job_processes

SLEEPER = "import os, time; print('up', os.environ['REPLICA_GROUP_ID'], os.getpid(), flush=True); time.sleep(1000)"
UNTIL = "import os, time\nprint('up', os.environ['REPLICA_GROUP_ID'], os.getpid(), flush=True)\nwhile not os.path.exists({!r}): time.sleep(0.02)"


class Job(Started):
    """A `torchx run` of a toy script."""

    def __init__(self, folder: Path, text: str, *words: str, **environ: str) -> None:
        folder.mkdir(exist_ok=True)
        self.run_dir = folder / "run"
        script = folder / "script.py"
        script.write_text(text)
        command = [str(BIN / "torchx"), "run", "-s", "local_cwd", "./components.py:ddp", "--run_dir", str(self.run_dir)]
        command += ["--script", str(script), *words]
        super().__init__(command, folder / "output.txt", self.run_dir, environ=environment(**environ))

    def text(self) -> str:
        return re.sub(r"\x1b\[\d+m", "", self.output())

    def logs(self) -> str:
        """The supervisors' logs: whole lines, where TorchX interleaves what it streams."""
        return "".join(p.read_text() for p in sorted(self.run_dir.glob("logs/group-?-attempt-?.log")))

    def workers(self, count: int) -> dict[str, int]:
        """Group -> pid of its newest worker, once `count` attempts have said that they are up."""

        def up() -> list[tuple[str, str]]:
            return re.findall(r"up (\d) (\d+)\n", self.logs())

        wait_for(lambda: len(up()) >= count, 60, f"{count} workers; output so far:\n{self.text()}")
        return {group: int(pid) for group, pid in up()}

    def supervisor(self, group: str) -> int:
        (path,) = self.run_dir.glob(f"events/supervisor-{group}-*.jsonl")
        return int(path.stem.rsplit("-", 1)[1])


@pytest.fixture
def launch(tmp_path: Path) -> Iterator:
    jobs: list[Job] = []

    def start(text: str, *words: str, **environ: str) -> Job:
        jobs.append(Job(tmp_path / str(len(jobs)), text, *words, **environ))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


def test_two_jobs_side_by_side_end_by_themselves_and_leave_what_they_should(launch, tmp_path: Path) -> None:
    script = "import sys; print('args', sys.argv[1:])\n" + UNTIL.format(str(tmp_path / "go"))
    jobs = [launch(script, *words, "--", "--steps", "3") for words in ((), ("--replicas", "1"))]
    for job, groups in zip(jobs, (2, 1), strict=True):
        job.workers(groups)
    (tmp_path / "go").touch()
    for job, groups in zip(jobs, (2, 1), strict=True):
        assert job.wait(60) == 0, job.text()
        text = job.text()
        assert text.count("args ['--steps', '3']") == groups
        assert str(job.run_dir) in text
        assert "Traceback" not in text
        assert job_processes(job.run_dir) == []
        token = job.run_dir / "token"
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert token.read_text().strip() not in text
        assert {e["event"] for e in read_events(job.run_dir)} >= {"start", "exit"}


def test_a_killed_worker_comes_back_and_a_killed_supervisor_takes_it_along(launch, tmp_path: Path) -> None:
    """The job goes on through both, and names the group that is lost."""
    job = launch(UNTIL.format(str(tmp_path / "go")))
    os.kill(job.workers(2)["1"], signal.SIGKILL)
    workers = job.workers(3)
    died = r"group 1 died: worker 0 killed by SIGKILL after \d+\.\d s; restart 1 of 10 in 0 s"
    wait_for(lambda: re.search(died, job.text()), what="the supervisor's sentence")
    os.kill(job.supervisor("1"), signal.SIGKILL)
    ended(workers["1"])
    assert process_tree.is_alive(workers["0"])
    (tmp_path / "go").touch()
    assert job.wait(60) == 1
    assert "group 1 is lost" in job.text()
    assert job_processes(job.run_dir) == []


@pytest.mark.parametrize("how", ["twice", "kill -9"])
def test_stopping_the_command_leaves_nothing(launch, how: str) -> None:
    ignores = "import signal; signal.signal(15, signal.SIG_IGN)\n" + SLEEPER  # the worst kind of worker
    job = launch(ignores, **{env.NOTICE: str(clock(3.0))} if how == "kill -9" else {})
    job.workers(2)
    # lighthouse and its keeper, and per group supervisor and worker (and a warm one, if it took long)
    assert len(job_processes(job.run_dir)) >= 6
    job.process.send_signal(signal.SIGKILL if how == "kill -9" else signal.SIGINT)
    if how == "twice":
        wait_for(lambda: job.logs().count("stops: stopped by SIGTERM") == 2, what="the first Ctrl-C")
        job.process.send_signal(signal.SIGINT)
    gone(job.run_dir, 10.0)
    job.wait(60)
