"""Folders in which the supervisors of a job collect evidence of one event: ``RUN_DIR/dumps/<n>-<why>-<what>``.

The supervisors share only the run directory. The first one that notices an event creates the folder, and the others add
their parts. `what` names the event and is the same for all of them (a group's attempt, a step).
"""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

KEPT = 20
"""Number of folders that are kept; the oldest are removed."""
FRESH = 60.0
"""Seconds for which a folder belongs to its event and accepts parts of other supervisors."""


def number(folder: Path) -> int:
    """Return the number in a folder's name, or 0 if the folder is not one of ours."""
    found = re.match(r"(\d+)-", folder.name)
    return int(found[1]) if found else 0


def all_folders(run_dir: Path) -> list[Path]:
    """Return our folders, in the order of their numbers."""
    try:
        with os.scandir(run_dir / "dumps") as entries:
            found = [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return []
    return sorted((f for f in found if number(f)), key=number)


def is_fresh(folder: Path) -> bool:
    try:
        return time.time() - folder.stat().st_mtime < FRESH
    except OSError:
        return False


def open_folder(run_dir: Path, why: str, what: str) -> tuple[Path, bool]:
    """Return the folder of an event, and whether it was created now. Raise OSError."""
    what = re.sub(r"[^\w.-]", "_", what)[:80]
    known = all_folders(run_dir)
    for folder in reversed(known):
        if folder.name.endswith(f"-{what}") and is_fresh(folder):
            return folder, False
    folder = run_dir / "dumps" / f"{number(known[-1]) + 1 if known else 1:03d}-{why}-{what}"
    try:
        folder.mkdir(parents=True)
    except FileExistsError:  # another supervisor has created it at the same time
        return folder, False
    for old in known[: max(0, len(known) + 1 - KEPT)]:
        shutil.rmtree(old, ignore_errors=True)
    return folder, True
