"""Where the supervisors of a job put what they collect about one event: ``RUN_DIR/dumps/<n>-<why>-<what>``.

They share nothing but the run directory. Whoever notices first makes the folder; the others see it and put their part
into it, too. `what` names the event alike for all of them (a group's life, a step).
"""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

KEPT = 20
"""Folders; the oldest go."""
FRESH = 60.0
"""Seconds in which a folder is still the same event's, and others put their part into it."""


def number(folder: Path) -> int:
    """Of its name; 0: not one of ours."""
    found = re.match(r"(\d+)-", folder.name)
    return int(found[1]) if found else 0


def all_folders(run_dir: Path) -> list[Path]:
    """In order of their numbers."""
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
    """The folder of that event, and whether it is new. Raises OSError."""
    what = re.sub(r"[^\w.-]", "_", what)[:80]
    known = all_folders(run_dir)
    for folder in reversed(known):
        if folder.name.endswith(f"-{what}") and is_fresh(folder):
            return folder, False
    folder = run_dir / "dumps" / f"{number(known[-1]) + 1 if known else 1:03d}-{why}-{what}"
    try:
        folder.mkdir(parents=True)
    except FileExistsError:  # another supervisor was as quick
        return folder, False
    for old in known[: max(0, len(known) + 1 - KEPT)]:
        shutil.rmtree(old, ignore_errors=True)
    return folder, True
