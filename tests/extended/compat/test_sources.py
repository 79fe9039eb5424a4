"""`ElasticLoader` over an Arrow data set of Hugging Face, in the environment of the trainers."""

from __future__ import annotations

import subprocess

import pytest

from tests.extended.compat.test_trainers import HOW
from tests.interpreters import TRAINERS_PYTHON
from tests.started import ROOT
from torchft_x import env

SCRIPT = """
from itertools import count
from datasets import Dataset
from tests.torch.train.elastic.samples import run_of
from torchft_x.train.elastic.prefetch import Prefetch

rows = Dataset.from_dict({"text": [f"row {i}" for i in range(100)], "label": list(range(100))}).with_format("torch")
for workers, options in ((0, {}), (2, {"multiprocessing_context": "fork"})):
    prefetch = Prefetch(rows, 0, None, workers, options)
    for start in (0, 4, 50, 54, 8):
        batch = prefetch.get(run_of(start, 4), (run_of(i, 4) for i in count(start + 4, 4)) if start < 90 else [])
        assert batch["label"].tolist() == list(range(start, start + 4)), batch
        assert batch["text"] == [f"row {i}" for i in range(start, start + 4)], batch
    prefetch.close()
"""


def test_rows_of_an_arrow_data_set() -> None:
    python = env.read(TRAINERS_PYTHON)
    if python is None:
        pytest.skip(HOW)
    found = subprocess.run(
        [python, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=120, env={"PYTHONPATH": str(ROOT)}
    )
    assert found.returncode == 0, found.stderr[-3000:]
