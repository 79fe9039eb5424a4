"""Reader of the file that names a job's groups.

The process that keeps the job's supervisors running changes it at any time, and the lighthouse polls it. The
file is as trustworthy as the token beside it: both can be written by all who may write into the run directory.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from torchft_x.core.job.kept_groups import parse
from torchft_x.core.messages.job import GroupsChanged
from torchft_x.errors import ConfigError

log = logging.getLogger(__name__)

_LIMIT = 1 << 22  # characters that are read: enough for thousands of groups with a sentence each


class GroupsFile:
    """The groups file. Used by one thread. Polling an unchanged file costs one system call."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None  # inode, time and size of the file read last; (): it was missing

    def changed(self) -> GroupsChanged | None:
        """Return the file's content if it has changed, else None.

        A file that can't be used counts as unchanged, so the groups read last stay valid."""
        before = self._seen
        try:
            stat = os.stat(self._path)
            self._seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if self._seen == before:
                return None
            with open(self._path, encoding="utf-8") as f:
                return parse(f.read(_LIMIT))
        except OSError as e:
            self._seen, why = (), str(e.strerror)
        except (UnicodeDecodeError, ConfigError) as e:
            why = str(e)
        if self._seen != before:
            log.warning("%s can't be used, the job's groups stay what they are: %s", self._path, why.rstrip("."))
        return None
