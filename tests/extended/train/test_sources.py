"""`ElasticLoader` over sources of packages that only the trainers' environment has: Arrow and Grain."""

from __future__ import annotations

import subprocess

import pytest

from tests.extended.compat.test_trainers import HOW
from tests.interpreters import TRAINERS_PYTHON
from tests.started import ROOT
from tests.util import scaled
from torchft_x import env


def test_each_sample_of_arrow_and_grain_once() -> None:
    python = env.read(TRAINERS_PYTHON)
    if python is None:
        pytest.skip(HOW)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/torch/train/elastic/test_sources.py"]
    done = subprocess.run(
        [*command, "-k", "arrow or grain"], cwd=ROOT, capture_output=True, text=True, timeout=scaled(100)
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr
