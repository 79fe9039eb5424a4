"""benchmarks/evidence/exact_data.py runs in a small form: kills, two more groups, a restart of everything; torchft."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.evidence import exact_data
from tests.extended.rpc.test_peer import HOW
from torchft_x import env


@pytest.mark.timeout(900)
@pytest.mark.parametrize("words", ["--policy constant", "--policy strict --layout hsdp2x2 --no-scale"])
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
@pytest.mark.parametrize("policy", ["sampler", "sampler_fresh"])
def test_torchft_trains_what_it_logs(policy: str, tmp_path: Path) -> None:
    if env.read(env.PEER_PYTHON) is None:
        pytest.skip(HOW)
    out = tmp_path / "figures.jsonl"
    sizes = ["--kills", "2", "--length", "4000", "--epochs", "2", "--slots", "4", "--out", str(out)]
    exact_data.main([*sizes, "--policy", policy, "--reference", "torchft", "--keep", str(tmp_path / "run")])
    (figures,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert not figures["problems"]
    problems = figures["checker"][3:] if figures["exit_code"] else []
    assert all(" is not exact: " in problem for problem in problems), problems  # lines and parameters agree
