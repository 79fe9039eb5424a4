"""docs/write_a_component.md and its example: a user's own component, on both TorchX lines, from a bare clone."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.started import ROOT
from tests.unit.launch.lines import BOTH, torchx

PAGE = (ROOT / "docs" / "write_a_component.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's directory with the example in it."""
    for path in (ROOT / "docs" / "examples").glob("*.py"):
        shutil.copy(path, tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", BOTH)
class TestOnEachLine:
    def test_the_five_lines(self, line: str, folder: Path) -> None:
        text = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
        assert len([row for row in text.splitlines() if row.strip()]) <= 5
        (folder / "five.py").write_text(text)
        words = ["run", "-s", "local_cwd", "--dryrun", "./five.py:my_job", "--replicas", "3", "--lr", "0.5", "--"]
        done = torchx(*words, "--steps=7", cwd=folder, line=line, PYTHONPATH=str(ROOT))
        assert done.returncode == 0, done.stderr
        application = done.stdout.split("=== SCHEDULER REQUEST ===")[0]
        assert "'num_replicas': 3" in application
        assert re.search(r"'train.py',\s+'--lr',\s+'0.5',\s+'--steps=7'", application)

    def test_its_hook_adjusts_the_request(self, line: str, folder: Path) -> None:
        words = ["run", "-s", "slurm", "--dryrun", "./my_component.py:my_job", "--mail"]
        done = torchx(*words, "me@example.org", cwd=folder, line=line, PYTHONPATH=str(ROOT))
        assert done.returncode == 0, done.stderr
        # 2 trainers (the lighthouse is beside the first), evaluator
        assert done.stdout.count("--mail-user=me@example.org") == 3

    def test_it_runs(self, line: str, folder: Path) -> None:
        words = ["run", "-s", "local_cwd", "./my_component.py:my_job", "--run_dir", "out"]
        done = torchx(*words, "--", "--lr", "0.05", cwd=folder, line=line, seconds=110, PYTHONPATH=str(ROOT))
        out = re.sub(r"\x1b\[\d+m", "", done.stdout + done.stderr)
        assert done.returncode == 0, out
        assert "trainer/0 step 200: loss" in out
        assert re.search(r"evaluator/0 .*evaluated step \d+: loss 0\.", out), out
        assert (folder / "out" / "model.pt").exists()
