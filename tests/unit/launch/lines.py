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


TORCHX_FT = (
    "import sys; from torchft_x.launch.plugin.command import CmdFt; from torchx.cli.main import main; CmdFt(); "
    "main(sys.argv[1:])"
)
"""The command with our schedulers where torchft_x is installed: in these tests it may be on the path only."""


def torchx(
    *words: str, cwd: Path = ROOT, line: str = "this", seconds: float = 60, ft: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the real command to its end, or with `ft` one that has our schedulers."""
    python = interpreter(line)
    return subprocess.run(
        [*([python, "-c", TORCHX_FT] if ft else [str(Path(python).with_name("torchx"))]), *words],
        cwd=cwd,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
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
