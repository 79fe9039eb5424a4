"""What is read of a job, and what of a file that is no such thing."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

from tests.unit.launch.keeper.test_record import (
    job,
)
from torchft_x.launch.keeper import record
from torchft_x.launch.keeper.record import Pid


def test_a_keeper_that_is_gone_without_a_word(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    made = job(tmp_path, keeper=record.this_process(child.pid))
    record.write(made)
    assert record.read(tmp_path).state == "RUNNING"
    child.kill()
    child.wait()
    found = record.read(tmp_path)
    assert found.state == "FAILED"
    assert "is gone without a word" in found.reason
    record.write(dataclasses.replace(made, keeper=Pid(pid=os.getpid(), ticks=1)))  # another one has its number
    assert record.read(tmp_path).state == "FAILED"
    record.write(job(tmp_path, boot="another"))  # the host was started anew
    assert record.read(tmp_path).state == "FAILED"
    record.write(dataclasses.replace(made, host="elsewhere"))  # of which nothing can be known
    assert record.read(tmp_path).state == "RUNNING"
    record.write(dataclasses.replace(made, state="SUCCEEDED"))
    assert record.read(tmp_path).state == "SUCCEEDED"
