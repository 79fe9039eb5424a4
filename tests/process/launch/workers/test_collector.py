"""What the supervisor reads and asks, from those that lie, and the folders. Real workers: tests/process/train/introspection/test_setup.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.util import wait_for
from torchft_x.launch.workers import probe_worker
from torchft_x.launch.workers.probe_worker import NoAnswerError, Target


def test_a_dead_one_is_described(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    target = Target(0, process.pid, tmp_path)
    assert probe_worker.why_silent(process.pid) == "it is dead"
    assert "is gone" in probe_worker.kernel_view(process.pid)
    with pytest.raises(NoAnswerError, match="can't answer"):
        probe_worker.ask(target, probe_worker.STACKS, 1.0)
    assert f"thread {os.getpid()} (" in probe_worker.kernel_view(os.getpid())


def test_only_a_process_that_sleeps_may_be_asked_by_a_signal() -> None:
    for code, sleeps in (("while True: pass", False), ("import time; time.sleep(1000)", True)):
        process = subprocess.Popen([sys.executable, "-c", code])
        try:
            if sleeps:
                assert wait_for(lambda pid=process.pid: probe_worker._sleeps(pid), 20)  # type: ignore[misc]
            else:
                assert not any(probe_worker._sleeps(process.pid) for _ in range(5))
        finally:
            process.kill()
            process.wait()
