"""benchmarks/evidence/exact_data.py runs in a small form: kills, two more groups, a restart of everything; torchft."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.evidence import exact_data
from tests.extended.rpc.test_peer import HOW
from tests.interpreters import PEER_PYTHON
from tests.process.programs import ROOT
from tests.util import scaled
from torchft_x import env


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "words",
    [
        "--policy constant",
        "--policy strict --layout hsdp2x2 --no-scale",
        "--policy strict --reproducible --check-every 2",
    ],
)
def test_each_sample_is_committed_once_under_kills(words: str, tmp_path: Path) -> None:
    out = tmp_path / "figures.jsonl"
    sizes = ["--kills", "10", "--length", "3000", "--epochs", "2", "--every", "20", "--out", str(out)]
    code = exact_data.main([*sizes, *words.split(), "--keep", str(tmp_path / "run")])
    (figures,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert code == 0, figures
    assert figures["kills"] >= 5  # the training may be over sooner than the last of them
    assert figures["restarts of everything"] == 1


@pytest.mark.peer
@pytest.mark.timeout(900)
def test_torchft_trains_what_it_logs(tmp_path: Path) -> None:
    if env.read(PEER_PYTHON) is None:
        pytest.skip(HOW)
    out = tmp_path / "figures.jsonl"
    sizes = ["--kills", "2", "--length", "2000", "--epochs", "2", "--slots", "4", "--out", str(out)]
    command = [sys.executable, "-m", "benchmarks.evidence.exact_data", "--policy", "sampler", "--reference", "torchft"]
    subprocess.run([*command, *sizes], cwd=ROOT, timeout=scaled(240))
    (figures,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert not figures["problems"]
    wrong = [line for line in figures["checker"] if not line.startswith("epoch ") and " rolled back; " not in line]
    assert wrong in ([], ["exact: 2 epochs of 2000 samples"]), "the lines disagree with each other or the parameters"
