"""scripts/train_ddp.py: its parts that can be tried without a job."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType

import torch

from tests.process.programs import python
from tests.torch.scripts.test_train_ddp import (
    SCRIPT,
    ddp,  # noqa: F401
)


def test_a_dump_is_the_parameters_bytes_in_order(ddp: ModuleType, tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, 2.0]]))
        module.bias.copy_(torch.tensor([3.0]))
    ddp.Dumper(str(tmp_path), module, "1", 0, 2).write(5, t=1.5, committed_in=9, healed=True)
    assert os.listdir(tmp_path) == ["g1-r0-a2-s000005.bin"]
    header, _, body = (tmp_path / "g1-r0-a2-s000005.bin").read_bytes().partition(b"\n")
    assert torch.frombuffer(bytearray(body), dtype=torch.float32).tolist() == [1.0, 2.0, 3.0]
    assert json.loads(header)["committed_in"] == 9
    python(SCRIPT.with_name("check_params.py"), tmp_path)


def test_a_mistake_is_one_sentence_and_exit_code_2() -> None:
    done = python(SCRIPT, "--data", "/nowhere", code=2)
    assert "--data /nowhere: no such file, directory or match." in done.stderr
    assert "Traceback" not in done.stderr
