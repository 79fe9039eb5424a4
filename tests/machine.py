"""Speed of this machine. Tests of processes stretch their deadlines and the clocks of torchft_x by its scale.

The measure is the start of Python processes that import torch, as many at a time as pytest-xdist has workers (or the
machine processors), under the present load of the machine. No module of `torchft_x` that reads its times may be imported
before: `torchft_x.timing` reads the scale once.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchft_x import env

ROOT = Path(__file__).parent.parent
USUAL = 2.0
"""Seconds that the import takes on a machine of scale 1, at most."""
VIRTUAL = (ROOT / "tests/unit", ROOT / "tests/extended/sim")
SLOWEST = 6.0
"""Highest scale at which time limits remain meaningful."""


def set_scale(config: pytest.Config) -> None:
    """Set TORCHFT_X_TIME_SCALE for this process and its children.

    It is 1 for unit tests, else the given or the measured scale.
    """
    assert "torchft_x.timing" not in sys.modules, "the scale must be set before torchft_x.timing is imported"
    if not needs_measure(config):
        os.environ[env.TIME_SCALE] = "1"
    elif env.read(env.TIME_SCALE) is None:
        together = min(getattr(config.known_args_namespace, "numprocesses", None) or 1, os.cpu_count() or 1)
        os.environ[env.TIME_SCALE] = f"{scale_for(min(_import_seconds(together), _import_seconds(together))):g}"


def needs_measure(config: pytest.Config) -> bool:
    """Return whether the session's tests may be scaled: none of them is of `VIRTUAL`, whose clocks are virtual.

    A session that includes some of these runs at scale 1, so that its tests of processes may fail on a slow machine.
    Folders that `--ignore` leaves out do not count.
    """
    asked = config.known_args_namespace
    paths = [Path(arg.split("::")[0]).absolute() for arg in asked.file_or_dir]
    ignored = [Path(arg).absolute() for arg in asked.ignore or ()]
    virtual = [folder for folder in VIRTUAL if not any(folder.is_relative_to(path) for path in ignored)]
    return bool(paths) and not any(
        path.is_relative_to(folder) or folder.is_relative_to(path) for path in paths for folder in virtual
    )


def scale_for(seconds: float) -> float:
    """Return the scale of a machine on which the import takes so many seconds. Exit with a sentence above `SLOWEST`."""
    scale = max(1.0, math.ceil(4 * seconds / USUAL) / 4)
    if scale > SLOWEST:
        print(
            f"This machine is too slow for tests of processes: it took {seconds:.1f} s to import torch, and more than "
            f"{USUAL * SLOWEST:g} s leave no time that means anything. Run them when it has less to do, or give a scale: "
            f"{env.TIME_SCALE}={scale:g}",
            file=sys.stderr,
        )
        raise SystemExit(pytest.ExitCode.USAGE_ERROR)
    return scale


def _import_seconds(together: int) -> float:
    """Return the seconds until so many processes that were started together have imported torch."""
    began = time.monotonic()
    for process in [subprocess.Popen([sys.executable, "-c", "import torch"]) for _ in range(together)]:
        assert process.wait() == 0, "torch can't be imported"
    return time.monotonic() - began
