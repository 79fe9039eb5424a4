"""Run a function in a process forked from one that has imported torch.

A group's attempt thereby starts in some hundredths of a second instead of seconds.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
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


def start(body: Callable[..., None], *args: Any, log: Path) -> Any:
    """Start `body(*args)` with this process's environment, and return the process. Both streams are appended to `log`."""
    process = forkserver().Process(target=_run, args=(body, args, log, dict(os.environ)), daemon=True)
    process.start()
    return process


def _run(body: Callable[..., None], args: Sequence[Any], log: Path, environ: Mapping[str, str]) -> None:
    with log.open("ab") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.environ.clear()
    os.environ.update(environ)
    torch.set_num_threads(1)
    body(*args)
