"""Which jobs of local_ft a user has started: one small file for each, which names its run directory.

~/.local/state/torchft_x/jobs/APP_ID        (XDG_STATE_HOME, if that is set)
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from torchft_x import env

MOST = 500
"""Jobs that are remembered."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


def index_folder() -> Path:
    return Path(env.read(env.STATE_HOME) or os.path.expanduser("~/.local/state"), "torchft_x", "jobs")


class Index:
    """Each call looks at the disk."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = index_folder() if folder is None else folder  # fixed

    def add(self, app_id: str, run_dir: str) -> None:
        """Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        other = self._folder / f".{app_id}"
        other.write_text(run_dir, "utf-8")
        os.replace(other, self._folder / app_id)
        for name, _ in self.all()[MOST:]:
            self.forget(name)

    def forget(self, app_id: str) -> None:
        with contextlib.suppress(OSError):
            (self._folder / app_id).unlink()

    def find(self, app_id: str) -> Path | None:
        """Its run directory. None: no such job was started by this user, or it is forgotten."""
        if not _NAME.fullmatch(app_id):
            return None
        try:
            run_dir = (self._folder / app_id).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return None
        return Path(run_dir) if run_dir.startswith("/") else None

    def all(self) -> list[tuple[str, Path]]:
        """Newest first."""
        found = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder):
                run_dir = self.find(entry.name)
                if run_dir is not None:
                    with contextlib.suppress(OSError):
                        found.append((entry.stat().st_mtime_ns, entry.name, run_dir))
        return [(name, run_dir) for _, name, run_dir in sorted(found, reverse=True)]
