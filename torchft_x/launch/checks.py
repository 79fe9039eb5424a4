"""What can be seen to be wrong before anything starts. Each check raises `ConfigError` with one sentence."""

from __future__ import annotations

import glob
import os
import shutil
from pathlib import Path

from torchft_x import env
from torchft_x.errors import ConfigError
from torchft_x.net import check_resolvable, parse_address


def check_script(script: str) -> None:
    """There must be such a file, seen from the current directory, and Python must understand it."""
    if not Path(script).is_file():
        raise ConfigError(f"The script {script} does not exist in {os.getcwd()}; name yours with --script.")
    try:
        compile(Path(script).read_bytes(), script, "exec", dont_inherit=True)
    except SyntaxError as e:
        raise ConfigError(
            f"The script {script} can't run: {e.msg} (line {e.lineno}: {(e.text or '').strip()})."
        ) from None
    except (OSError, ValueError) as e:
        raise ConfigError(f"The script {script} can't be read: {e}.") from None


def check_lighthouse(address: str) -> None:
    """Its name must be known here. Nothing is connected."""
    what = f"The lighthouse's address (--lighthouse or {env.LIGHTHOUSE})"
    check_resolvable(parse_address(address, what=what), what=what)


def check_gpus(gpus: int) -> None:
    """Whoever asks for GPUs needs a machine that has one."""
    if gpus > 0 and not accelerators():
        raise ConfigError(
            f"--gpu {gpus}: this machine has no GPU; leave --gpu out to train on the CPU, "
            "or choose another scheduler with -s."
        )


def accelerators() -> list[str]:
    """Device files of NVIDIA (also WSL), AMD and Intel accelerators, or the driver's tool."""
    found = [f for p in ("nvidia[0-9]*", "dxg", "kfd", "dri/renderD*") for f in glob.glob(f"/dev/{p}")]
    tool = shutil.which("nvidia-smi")
    return found or ([tool] if tool else [])
