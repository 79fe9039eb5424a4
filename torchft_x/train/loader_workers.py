"""Keeps the workers of torch's DataLoader alive through a SIGTERM that a scheduler sends to all processes of a job.

Slurm and systemd send one to each process. A worker ends by it, and torch then raises in the trainer, at any instruction: it
would never come to the boundary at which it leaves and saves its last step.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
from multiprocessing import resource_tracker
from typing import Any

from torch.utils.data import _utils, dataloader

_TERM = {signal.SIGTERM}
_run_torchs_worker = getattr(_utils.worker, "_worker_loop", None)


def spare_loader_workers() -> None:
    """Let workers that start from now on end only when their trainer ends or stops them.

    Replaces two private functions of torch; does nothing where torch or the system lacks what it takes.
    """
    iterator: Any = getattr(dataloader, "_MultiProcessingDataLoaderIter", None)
    if iterator is None or _run_torchs_worker is None or not hasattr(signal, "sigwaitinfo"):
        return
    if _utils.worker._worker_loop is _run_worker:
        return
    _utils.worker._worker_loop = _run_worker
    start_workers = iterator.__init__

    @functools.wraps(start_workers)
    def start_with_the_signal_blocked(self: Any, *args: Any, **kwargs: Any) -> None:
        resource_tracker.ensure_running()  # starting it unblocks the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _TERM)  # a child inherits it, also for threads of its imports
        try:
            start_workers(self, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    iterator.__init__ = start_with_the_signal_blocked


def _run_worker(*args: Any) -> None:
    """Run torch's loop in a worker, whose SIGTERM is blocked: a thread takes those of its trainer."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _TERM)
    threading.Thread(target=_end_when_told, name="torchft_x-loader-worker", daemon=True).start()
    assert _run_torchs_worker is not None
    _run_torchs_worker(*args)


def _end_when_told() -> None:
    trainer = multiprocessing.parent_process()
    while trainer is not None:
        if signal.sigwaitinfo(_TERM).si_pid == trainer.pid:
            os._exit(0)
