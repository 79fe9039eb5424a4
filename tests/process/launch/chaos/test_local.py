"""launch/chaos: real processes of a run are struck, and nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.observe.written import Log
from tests.util import scaled, wait_for
from torchft_x import env
from torchft_x.__main__ import main
from torchft_x.errors import ConfigError
from torchft_x.launch.chaos.local import LocalRun
from torchft_x.launch.chaos.runner import Chaos, ChaosEnded
from torchft_x.launch.chaos.schedule import Planned, Target, listed
from torchft_x.observe.events import read_events

Start = Callable[..., subprocess.Popen[bytes]]
_SLEEPER = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process as one of the run, with its event log; or of another run."""
    started: list[subprocess.Popen[bytes]] = []

    def one(role: str, group: str = "0", rank: int = 0, *, run: Path = tmp_path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", _SLEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, env.RUN_DIR: str(run)},
        )
        started.append(process)
        assert process.stdout.readline() == b"up\n"
        Log(tmp_path, role, process.pid, group=group, rank=rank).tell(1.0, "joined", step=0)
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_targets_are_the_living_of_this_run(tmp_path: Path, start: Start) -> None:
    worker, supervisor = start("trainer", "1", 2), start("supervisor", "1")
    start("trainer", "5", run=tmp_path / "another")  # its log is here, and says so: a process id that was given away
    (tmp_path / "events" / "odd.jsonl").write_text('{"pid": "1"}\n')
    run = LocalRun(tmp_path)
    mine = [Target("supervisor", "1", 0, supervisor.pid), Target("worker", "1", 2, worker.pid)]
    assert run.living() == mine
    worker.kill()
    worker.wait()
    assert run.living() == mine[:1]


def test_a_stranger_with_a_workers_number_is_not_struck(tmp_path: Path, start: Start) -> None:
    stranger = start("trainer", run=tmp_path / "another")
    run = LocalRun(tmp_path)
    assert not run.strike(Target("worker", "0", 0, stranger.pid), "kill")
    assert stranger.poll() is None
    assert not run.strike(Target("worker", "0", 0, 2**22 + 1), "kill")  # nobody's


def test_each_kind_has_its_signal(tmp_path: Path, start: Start) -> None:
    run = LocalRun(tmp_path)
    workers = [start("trainer", "0", rank) for rank in range(2)]
    supervisor = start("supervisor", "1")
    targets = {t.pid: t for t in run.living()}
    assert run.strike(targets[workers[0].pid], "stop")
    wait_for(lambda: state_of(workers[0].pid) == "T", what="the stop")
    run.resume(targets[workers[0].pid])
    wait_for(lambda: state_of(workers[0].pid) != "T", what="the resume")
    assert run.strike(targets[supervisor.pid], "supervisor")
    assert supervisor.wait(scaled(10)) == -signal.SIGKILL
    assert run.strike(targets[workers[0].pid], "drain")  # all of its group
    assert run.living() == []  # who leaves, or has left, is not struck again
    assert [w.wait(scaled(10)) for w in workers] == [-signal.SIGTERM] * 2


def test_a_schedule_is_carried_out_and_written_down(tmp_path: Path, start: Start) -> None:
    stopped, killed = start("trainer", "0"), start("trainer", "1", 3)
    start("supervisor", "0")
    said: list[str] = []
    with Chaos(LocalRun(tmp_path), tmp_path, said.append) as chaos:
        chaos.run(listed("0:stop:0:0.5,0.1:kill:1", seed=0))
    assert state_of(stopped.pid) != "T"  # it was waited for
    assert killed.wait(scaled(10)) == -signal.SIGKILL
    faults = [e for e in read_events(tmp_path) if e["event"] == "fault"]
    assert [(e["role"], e["number"], e["kind"], e["group"], e["rank"], e["victim"]) for e in faults] == [
        ("chaos", 1, "stop", "0", 0, stopped.pid),
        ("chaos", 2, "kill", "1", 3, killed.pid),
    ]
    assert faults[0]["duration"] == 0.5
    assert said[0] == f"1: stop for 0.5 s: worker 0 of group 0 (process {stopped.pid})"


def test_who_is_stopped_goes_on_whatever_happens(tmp_path: Path, start: Start) -> None:
    stopped = start("trainer", "0")

    def plan() -> Iterator[Planned]:
        yield from listed("0:stop:0:1000", seed=0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Chaos(LocalRun(tmp_path), tmp_path, lambda _: None) as chaos:
        chaos.run(plan())
    wait_for(lambda: state_of(stopped.pid) != "T", what="the resume")


def test_a_dry_run_does_nothing(tmp_path: Path, start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    worker = start("trainer", "1")
    assert main(["chaos", str(tmp_path), "--mean", "2", "--count", "3", "--seed", "1", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[3].endswith(f"kill: worker 0 of group 1 (process {worker.pid})")
    assert worker.poll() is None
    assert list(tmp_path.glob("events/chaos-*")) == []


def test_the_end_of_the_job_ends_the_schedule(tmp_path: Path, start: Start) -> None:
    last = start("trainer", "0")
    with (
        pytest.raises(ChaosEnded, match="the job has ended after 1 faults"),
        Chaos(LocalRun(tmp_path), tmp_path, lambda _: None) as chaos,
    ):
        chaos.run(listed("0:kill:0,1000:kill:0", seed=0))
    assert last.wait(scaled(10)) == -signal.SIGKILL


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users_run_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(ConfigError, match=r"belongs to another user \(12345\)"):
        LocalRun(tmp_path)
