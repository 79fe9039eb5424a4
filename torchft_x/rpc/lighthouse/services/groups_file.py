"""The groups of a job whose supervisors somebody keeps running: a file that says what he wants, looked at again and again.

It is as trustworthy as the token beside it: whoever may write into the run directory.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from torchft_x.core.job.kept_groups import parse
from torchft_x.core.messages.job import GroupsChanged
from torchft_x.errors import ConfigError

log = logging.getLogger(__name__)

_LIMIT = 1 << 22  # characters; thousands of groups with a sentence each


class GroupsFile:
    """Used by one thread. A look at a file that hasn't changed is one system call."""

    def __init__(self, path: str | Path) -> None:
        self._path = path  # fixed
        self._seen: tuple[int, ...] | None = None  # of what was read last; empty: there was nothing to read

    def changed(self) -> GroupsChanged | None:
        """What it says, if that is new. None as well for a file that can't be used: what was read last stands."""
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
