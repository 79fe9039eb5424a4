"""TorchX's two lines, as commands: that of this interpreter, and torchx-nightly's in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.interpreters import NIGHTLY_PYTHON
from tests.started import ROOT, environment
from tests.util import scaled
from torchft_x import env

BOTH = ("this", "nightly")


def interpreter(line: str) -> str:
    """Return the Python of a line, or skip the test if there is none."""
    if line == "this":
        return sys.executable
    python = env.read(NIGHTLY_PYTHON)
    if python is None:
        pytest.skip(
            f"set {NIGHTLY_PYTHON} to the Python of an environment with torchx-nightly and torchft_x's other "
            "dependencies: python3 -m venv V; V/bin/pip install torch==2.13.0 torchx-nightly==2026.10.26 grpcio "
            "'protobuf<8' fsspec kubernetes"
        )
    return python


def torchx(
    *words: str, folder: Path = ROOT, line: str = "this", seconds: float = 60, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the real command to its end."""
    return subprocess.run(
        [str(Path(interpreter(line)).with_name("torchx")), *words],
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=scaled(seconds),
        check=False,
    )


NAMES = ("ddp", "hsdp", "diloco", "titan", "lighthouse")


TRAINING = NAMES[:3]


FILES = {
    "components.py": NAMES,
    "components/listed.py": NAMES,
    **{f"components/{name}.py": (name,) for name in NAMES},
}
