"""Search for run directories, with the time at which each was written last."""

from __future__ import annotations

import os
from pathlib import Path

RUNS = Path("runs")
"""Folder in which `torchx run` makes run directories by default."""


def is_run(path: Path) -> bool:
    return Path(path, "events").is_dir() and not path.is_symlink()


def runs_below(folder: Path) -> list[Path]:
    """Return the run directories directly in `folder`, the oldest first."""
    try:
        found = [path for path in folder.iterdir() if is_run(path)]
    except OSError:
        return []
    return sorted(found, key=written)


def newest_run(folder: Path = RUNS) -> Path | None:
    return next(reversed(runs_below(folder)), None)


def written(run_dir: Path) -> float:
    """Return the unix seconds of the newest change of a run's event logs; 0.0 if the run directory is gone."""
    try:
        with os.scandir(run_dir / "events") as entries:
            return max((entry.stat().st_mtime for entry in entries), default=os.stat(run_dir).st_mtime)
    except OSError:  # gone in the meantime
        return 0.0
