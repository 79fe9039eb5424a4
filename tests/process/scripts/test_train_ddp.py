"""scripts/train_ddp.py and its trial: their parts that can be tried without a job."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from benchmarks.trial.dump import Dumper
from tests.process.programs import ROOT, python


def test_a_dump_is_the_parameters_bytes_in_order(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, 2.0]]))
        module.bias.copy_(torch.tensor([3.0]))
    Dumper(str(tmp_path), module.parameters(), "1", 0, 2).write(5, t=1.5, committed_in=9, healed=True)
    assert [path.name for path in tmp_path.iterdir()] == ["g1-r0-a2-s000005.bin"]
    header, _, body = (tmp_path / "g1-r0-a2-s000005.bin").read_bytes().partition(b"\n")
    assert torch.frombuffer(bytearray(body), dtype=torch.float32).tolist() == [1.0, 2.0, 3.0]
    assert json.loads(header)["committed_in"] == 9
    python("-m", "benchmarks.evidence.check_params", tmp_path)


def test_a_mistake_is_one_sentence_and_exit_code_2() -> None:
    done = python(ROOT / "scripts/train_ddp.py", "--data", "/nowhere", code=2)
    assert "train_ddp.py: --data /nowhere: no such file, directory or match." in done.stderr
    assert "Traceback" not in done.stderr


def test_a_trial_stops_at_the_step_that_it_is_told_with_a_dump_of_each(tmp_path: Path) -> None:
    """The group is alone: it starts a lighthouse for itself."""
    (tmp_path / "until").write_text("3")
    small = ("--width", "16", "--heads", "2", "--layers", "1", "--seq-len", "8", "--batch-size", "2", "--mock-data")
    flags = ("--until", tmp_path / "until", "--dump-params", tmp_path / "dumps", "--pace", "0.01")
    done = python(ROOT / "benchmarks/trial/ddp.py", "--steps", "100", "--log-every", "2", *flags, *small)
    assert "step     2 | loss" in done.stdout
    dumps = sorted((tmp_path / "dumps").iterdir())
    headers = [json.loads(dump.read_bytes().partition(b"\n")[0]) for dump in dumps]
    assert [(h["step"], h["drawn"], h["participants"], h["healed"]) for h in headers] == [
        (step, step, 1, step == 1)
        for step in (1, 2, 3)  # the first one is of a new process
    ]
    python("-m", "benchmarks.evidence.check_params", tmp_path / "dumps")
