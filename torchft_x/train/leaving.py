"""Ends a training loop in order, when it is done and when SIGTERM comes first."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from types import TracebackType
from typing import Any, Protocol

import torch
import torch.distributed as dist

from torchft_x.train.manager import Manager


class Checkpoint(Protocol):
    """Interface to the methods of `torchft_x.Checkpoint` that `Leaving` calls."""

    def finish(self) -> None: ...
    def leave(self) -> None: ...


class Leaving:
    """Context of a training loop in which SIGTERM makes the loop leave at the next step boundary.

    Leaving at a boundary costs the other groups nothing.

    ::

        with Leaving(manager, checkpoint) as leaving:
            while manager.current_step() < STEPS and not leaving.requested():
                ...  # one step

    On exit it saves the last step, if there is a checkpoint, and shuts the Manager down. If the loop ended because
    `requested` was true, it then ends the program with exit code 143; started again, the program continues from that step.
    Otherwise the training is done. After an exception it does nothing. Enter it on the main thread.

    Args:
        manager: this rank's Manager; None on a rank that has none (the followers of an `Island`).
        checkpoint: the job's checkpoint, if there is one.
        group: process group of this replica group's ranks, which takes tensors on the CPU. With it `requested` is the same
            on all ranks, by an all-reduce of four bytes. Ranks that compute together, as in FSDP2, must leave together.
        seconds: longest time from the signal to the boundary, or twice the last step if that is longer. After it the
            process kills itself, because a step may wait for groups that leave as well. Saving after the boundary may
            take as long as the sender of the signal allows.
    """

    def __init__(
        self,
        manager: Manager | None,
        checkpoint: Checkpoint | None = None,
        group: dist.ProcessGroup | None = None,
        *,
        seconds: float = 2.0,
    ) -> None:
        self._manager = manager
        self._checkpoint = checkpoint
        self._group = group
        self._seconds = seconds
        self._signalled = False
        self._leaves = False  # what `requested` returned last
        self._asked = time.monotonic()  # monotonic time of the last call of `requested`
        self._step = 0.0  # seconds between the last two calls of `requested`
        self._at_boundary = threading.Event()
        # A signal handler may put into a SimpleQueue, but not start a thread.
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._before: Any = None  # the previous handler of SIGTERM

    def requested(self) -> bool:
        """Return whether the loop must end. Call it between two steps, on all ranks of `group`."""
        now = time.monotonic()
        self._asked, self._step = now, now - self._asked
        self._leaves = self._signalled
        if self._group is not None:
            answer = torch.tensor(self._leaves, dtype=torch.int32)
            dist.all_reduce(answer, dist.ReduceOp.MAX, self._group)
            self._leaves = bool(answer)
        return self._leaves

    def __enter__(self) -> Leaving:
        threading.Thread(target=self._die_late, name="leaving", daemon=True).start()
        self._before = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._at_boundary.set()
        self._signals.put(0)
        try:
            if kind is None:
                self._end()
        finally:
            signal.signal(signal.SIGTERM, self._before)

    def _end(self) -> None:
        if self._checkpoint is not None and not self._leaves:
            self._checkpoint.finish()
        if self._manager is not None:
            self._manager.shutdown(wait=not self._leaves, finished=not self._leaves)
        if not self._leaves:
            return
        if self._checkpoint is not None:
            self._checkpoint.leave()  # after the Manager's shutdown, so that the other groups don't wait for it
        if self._group is not None:
            dist.destroy_process_group()
        raise SystemExit(128 + signal.SIGTERM)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signalled = True
        self._signals.put(number)

    def _die_late(self) -> None:
        number = self._signals.get()
        if number and not self._at_boundary.wait(max(self._seconds, 2 * self._step)):
            os._exit(128 + number)
