"""Runs the process that saves the states held in a supervisor's memory (`torchft_x checkpoint from-memory`).

It is a process of its own because the supervisor does not import torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from torchft_x import env
from torchft_x.launch.process import process_tree
from torchft_x.launch.process.group_store import SHIM

_COMMAND = (sys.executable, "-m", "torchft_x", "checkpoint", "from-memory")
_WORDS = 300  # characters of the process's last line that are quoted


class SaveCopies:
    """Process that saves the copies. It starts in the constructor, and dies with this process.

    Args:
        slots: result of `CheckpointMemory.setting`.
        environ: environment of the process.
        log: file for the process's output.
    """

    def __init__(self, slots: str, environ: Mapping[str, str], log: Path) -> None:
        shim = [sys.executable, "-S", SHIM, "server", str(os.getpid())]
        self._log = log
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*shim, *_COMMAND], env={**environ, env.MEMORY_SLOTS: slots}, stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        process.returncode = 0  # collected in `has_ended`, not by Popen
        self._pid = process.pid
        self._pidfd = process_tree.open_pidfd(process.pid)
        self._code: int | None = None

    def fds(self) -> list[int]:
        """Return the descriptors that become readable when the process has ended."""
        return [] if self._pidfd is None else [self._pidfd]

    def has_ended(self) -> bool:
        if self._code is None:
            self._code = process_tree.reap().get(self._pid)
            if self._code is not None and self._pidfd is not None:
                os.close(self._pidfd)
        return self._code is not None

    def kill(self) -> None:
        process_tree.send([self._pid], signal.SIGKILL)

    def sentence(self) -> str:
        """Return the result as a clause for people. The process must have ended."""
        lines = [line.strip() for line in self._log.read_text("utf-8", "replace").splitlines() if line.strip()]
        last = lines[-1].removeprefix("torchft_x checkpoint from-memory: ")[:_WORDS] if lines else ""
        if self._code == 0:
            return last
        why = last if self._code is not None and self._code > 0 and last else "it could not be written in time."
        return f"the copy of its state in memory is not saved: {why}"
