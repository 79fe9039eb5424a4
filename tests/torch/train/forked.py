"""Run a module as a program, as `python -m` does, in a process forked from one that has imported torch.

A group's attempt thereby starts in some hundredths of a second instead of seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

_context: Any = None


def forkserver() -> Any:
    """Return the multiprocessing context whose server has imported the modules of ranks and workers."""
    global _context
    if _context is None:
        _context = multiprocessing.get_context("forkserver")
        _context.set_forkserver_preload(["tests.torch.train.sharded"])
    return _context


def _run(module: str, arguments: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
    with log.open("ab") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.environ.clear()
    os.environ.update(environ)
    torch.set_num_threads(1)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class Program:
    """A forked program with the interface of `subprocess.Popen`. Both streams are appended to `log`."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
        self._process = forkserver().Process(target=_run, args=(module, arguments, log, dict(environ)), daemon=True)
        self._process.start()
        self.pid = int(self._process.pid)

    @property
    def returncode(self) -> int | None:
        """Exit code, or -signal if it was killed; None while it runs."""
        code = self._process.exitcode
        return None if code is None else int(code)

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        assert self.returncode is not None, f"process {self.pid} still runs after {timeout} s"
        return self.returncode
