"""benchmarks/evidence/exact_data.py runs in a small form: 10 kills, two more groups, and a restart of everything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.evidence import exact_data


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
