"""Finds old run directories and removes them, for ``torchft_x clean``."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from torchft_x.observe.console import harmless
from torchft_x.observe.processes import job_processes
from torchft_x.observe.run import read_run
from torchft_x.observe.run_dirs import runs_below, written

DAYS = 7.0
_QUIET = 3600.0  # seconds without an event after which a run without a recorded end counts as ended on every host


@dataclass(frozen=True)
class OldRun:
    path: Path
    days: float  # days since its newest event
    bytes: int
    stays: str  # reason why it must stay; '' if it may be removed


def examine(folder: Path, days: float, now: float) -> list[OldRun]:
    """Return the runs in `folder` without an event for that many days, the oldest first. `now` is in Unix seconds."""
    found = []
    for path in runs_below(folder):
        age = max(0.0, now - written(path))
        if age >= days * 86400:
            found.append(OldRun(path, age / 86400, _size(path), _stays(path, age)))
    return found


def _stays(path: Path, age: float) -> str:
    if path.stat().st_uid != os.geteuid():
        return "it is another user's"
    if job_processes(path):
        return "it goes on"
    if age < _QUIET:
        run = read_run(path)
        if run is None or run.code is None:
            return "its end was not written, and it may go on on another host"
    return ""


def _size(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except OSError:
                continue
    return total


def remove(path: Path) -> str:
    """Remove a run directory. Return the error as a sentence, or '' if there was none."""
    try:
        shutil.rmtree(path)
    except OSError as e:
        return f"{harmless(path)} can't be removed ({e.strerror})."
    return ""
