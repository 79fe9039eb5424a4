"""Index of the local_ft jobs that a user has started: one small file for each, which holds its run directory.

~/.local/state/torchft_x/jobs/APP_ID        (XDG_STATE_HOME, if that is set)
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from torchft_x import env
from torchft_x.atomic_file import replace_file

MOST = 500
"""Number of newest jobs that are kept."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


def index_folder() -> Path:
    return Path(env.read(env.STATE_HOME) or os.path.expanduser("~/.local/state"), "torchft_x", "jobs")


class Index:
    """Index of a user's jobs. Each call reads or writes the disk."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = index_folder() if folder is None else folder  # fixed

    def add(self, app_id: str, run_dir: str) -> None:
        """Add a job, and drop the oldest ones beyond `MOST`. Raise `OSError` if the file can't be written."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(self._folder / app_id, run_dir)
        for name, _ in self.all()[MOST:]:
            self.forget(name)

    def forget(self, app_id: str) -> None:
        with contextlib.suppress(OSError):
            (self._folder / app_id).unlink()

    def find(self, app_id: str) -> Path | None:
        """Return the job's run directory, or None if this user started no such job or it was dropped from the index."""
        if not _NAME.fullmatch(app_id):
            return None
        try:
            run_dir = (self._folder / app_id).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return None
        return Path(run_dir) if run_dir.startswith("/") else None

    def all(self) -> list[tuple[str, Path]]:
        """Return the names and run directories of all jobs, the newest first."""
        found = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder):
                run_dir = self.find(entry.name)
                if run_dir is not None:
                    with contextlib.suppress(OSError):
                        found.append((entry.stat().st_mtime_ns, entry.name, run_dir))
        return [(name, run_dir) for _, name, run_dir in sorted(found, reverse=True)]
