"""Keeps the workers of torch's DataLoader alive through a SIGTERM that a scheduler sends to all processes of a job.

Slurm and systemd send SIGTERM to each process. A worker would die of it, and torch would then raise in the trainer, at
any instruction. The trainer would never reach the boundary at which it leaves and saves its last step.
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
    """Make workers that start after this call end only when their trainer ends or stops them.

    This replaces two private functions of torch. It does nothing if torch lacks them or the system lacks `sigwaitinfo`.
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
        resource_tracker.ensure_running()  # first, because starting the tracker unblocks the signal
        # A child inherits the mask, also for the threads that its imports start.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _TERM)
        try:
            start_workers(self, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    iterator.__init__ = start_with_the_signal_blocked


def _run_worker(*args: Any) -> None:
    """Run torch's loop in a worker with SIGTERM blocked. A thread ends the worker if the trainer sent the signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _TERM)
    threading.Thread(target=_end_when_told, name="torchft_x-loader-worker", daemon=True).start()
    assert _run_torchs_worker is not None
    _run_torchs_worker(*args)


def _end_when_told() -> None:
    trainer = multiprocessing.parent_process()
    while trainer is not None:
        if signal.sigwaitinfo(_TERM).si_pid == trainer.pid:
            os._exit(0)
