"""The health command at a real supervisor with toy scripts: when it runs, and what becomes of a group on a bad host."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.launch.driven import SLEEPER, Driven, drive
from tests.util import wait_for
from torchft_x.launch.job import health
from torchft_x.launch.job.health import UNHEALTHY, UNHEALTHY_HOST
from torchft_x.observe.events import read_events
from torchft_x.timing import TIMING

__all__ = ["drive"]  # a fixture


def test_a_bad_host_starts_no_attempt_and_its_last_lines_say_why(drive: Callable[..., Driven]) -> None:
    run = drive(SLEEPER, health="seq 9; echo 'GPU 3 is lost.' >&2; exit 3", launcher={"no_restart_code": 1})
    assert run.wait() == 1
    sentence = f"the health command failed (exit code 3) on {socket.gethostname()}: 8; 9; GPU 3 is lost"
    assert [(r["kind"], r.get("code"), r.get("sentence")) for r in run.reports()] == [
        ("done", 1, sentence),
        ("closed", None, None),
    ]
    assert run.err.read_text() == f"group 1 stops: {sentence}\n"
    assert [(e["event"], e["reason"]) for e in read_events(run.folder)] == [("error", sentence)]


def test_it_runs_again_after_each_death(drive: Callable[..., Driven], tmp_path: Path) -> None:
    (code := tmp_path / "code").write_text("0")
    run = drive(SLEEPER, health=f'echo "$REPLICA_GROUP_ID" >> {tmp_path}/ran; exit $(cat {code})')
    os.kill(run.worker(), signal.SIGKILL)
    wait_for(lambda: run.reports("exited"), what="the first end")
    second = run.worker()
    code.write_text("9")
    os.kill(second, signal.SIGKILL)
    assert run.wait() == 1
    assert (tmp_path / "ran").read_text() == "1\n1\n1\n"
    assert [r["kind"] for r in run.reports()] == ["started", "exited", "started", "exited", "done", "closed"]
    assert "failed (exit code 9)" in run.reports("done")[0]["sentence"]


def test_on_slurm_the_node_is_named_and_the_group_is_not_over(
    drive: Callable[..., Driven], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    (fence := tmp_path / "newest-trainer-1").write_text("4_1-r0\n")
    run = drive(SLEEPER, health="exit 1", launcher={"no_restart_code": 1, "fence": [str(fence), "4_1-r0"]})
    assert run.wait() == UNHEALTHY_HOST
    assert [r["kind"] for r in run.reports()] == ["closed"]  # a group that is done would not be waited for
    said = f"the health command failed (exit code 1) on {socket.gethostname()}"
    assert (tmp_path / UNHEALTHY / "n7").read_text() == f"4_1-r0 {said}\n"
    assert (tmp_path / "unhealthy/n7").read_text() == f"4_1-r0 {said}\n"


def test_it_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "TIMING", dataclasses.replace(TIMING, health=0.3))
    said = health.failure("echo asks the driver; sleep 1000", os.environ, tmp_path)
    assert said == f"the health command did not end within 0.3 s on {socket.gethostname()}: asks the driver"


def test_a_request_to_stop_ends_it(tmp_path: Path) -> None:
    asks = iter([False, True, True])
    assert health.failure("sleep 1000", os.environ, tmp_path, lambda: next(asks)) == ""


@pytest.mark.parametrize(("command", "said"), [("true", ""), ("kill -9 $$", "the health command failed (SIGKILL) on ")])
def test_exit_codes(command: str, said: str, tmp_path: Path) -> None:
    found = health.failure(command, os.environ, tmp_path)
    assert found == (said and said + socket.gethostname())
