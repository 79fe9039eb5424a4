"""Writes frozen shards to the store beside the training."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time

from torch import Tensor

from torchft_x.core.training.save_duty import SaveFailures
from torchft_x.errors import TorchftXError, TransferError
from torchft_x.observe.events import EventLog
from torchft_x.timing import TIMING
from torchft_x.train.checkpoint.claiming import Claiming
from torchft_x.transfer.durable import writer
from torchft_x.transfer.durable.names import Name
from torchft_x.transfer.durable.shard import Shard, allocate_room
from torchft_x.transfer.durable.store import Store

log = logging.getLogger(__name__)

_NICE = 10  # nice value of the thread, so that training has the processor first


class Saving:
    """Thread that writes one shard at a time. Holds the memory for the next shard while no save runs.

    `claiming`: the job's claim to the URL, on rank 0.
    """

    def __init__(
        self, store: Store, claiming: Claiming | None, events: EventLog, *, job: str, keep: int, timeout: float
    ) -> None:
        self._store = store
        self._claiming = claiming
        self._events = events
        self._job = job
        self._keep = keep
        self._timeout = timeout
        self._failures = SaveFailures()
        self._stop = threading.Event()
        self._changed = threading.Condition()  # guards the rest
        self._next: tuple[Name, Shard] | None = None  # the save in progress
        self._thread: threading.Thread | None = None
        self._room: tuple[int, bool] | None = None  # memory to allocate (`room_for`); None: nothing
        self.memory: Tensor | None = None  # for the next shard; None while a save runs
        self.error: TorchftXError | None = None  # why the last save failed; None if it succeeded

    @property
    def busy(self) -> int | None:
        """Step that is being saved; None if no save runs."""
        with self._changed:
            return None if self._next is None else self._next[1].step

    def prepare(self, room: tuple[int, bool]) -> None:
        """Allocate memory for the first shard on the thread, so that its save takes training no longer than others."""
        with self._changed:
            self._room = room
            self._changed.notify_all()
        self._start()

    def submit(self, save: Name, shard: Shard) -> None:
        """Start to write `shard` as part of the checkpoint `save`. Allowed only if no save runs."""
        with self._changed:
            assert self._next is None, "one save at a time"
            self._next, self.error, self.memory = (save, shard), None, None
            self._changed.notify_all()
        self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="torchft_x-checkpoint", daemon=True)
            self._thread.start()

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until no save runs. Return whether that happened."""
        with self._changed:
            return self._changed.wait_for(lambda: self._next is None, timeout)

    def close(self) -> None:
        """Stop the thread without waiting. A running save is given up at its next wait."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()

    def warn(self, what: str) -> None:
        """Log that a save failed, unless that was logged a moment ago. `what`: a sentence."""
        line = self._failures.failed(what, time.monotonic())
        if line:
            log.warning("%s", line)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next or self._room or self._stop.is_set())
                task, room, self._room = self._next, self._room, None
            if task is None:
                if room is None:
                    return
                self._allocate(room)
                continue
            save, shard = task
            error: TorchftXError | None = None
            began = time.monotonic()
            try:
                self._save(save, shard)
            except TorchftXError as e:
                error = e
            except Exception as e:  # an error must not end the thread: the next save may succeed
                log.debug("a save failed", exc_info=True)
                error = TransferError(f"checkpoint {self._store.shown}: {save} failed ({e!r}).")
            if error is not None:
                self.warn(str(error))
            elif shard.rank == 0:
                self._failures.worked()
                took = time.monotonic() - began
                log.info("checkpoint %s: step %d is saved, in %.1f s", self._store.shown, shard.step, took)
                self._events.emit("checkpoint", step=shard.step, duration=took, bytes=shard.nbytes)
            with self._changed:
                self._next, self.memory, self.error = None, shard.memory, error
                self._changed.notify_all()

    def _allocate(self, room: tuple[int, bool]) -> None:
        try:
            memory = allocate_room(*room)
        except RuntimeError:  # the save will report the error
            return
        with self._changed:
            if self._next is None:
                self.memory = memory

    def _save(self, save: Name, shard: Shard) -> None:
        writer.write_shard(self._store, save, shard)
        if shard.rank == 0:
            if self._claiming is not None:
                self._claiming.wait(2 * TIMING.claim_watch + self._timeout)
            writer.complete(self._store, save, shard, job=self._job, timeout=self._timeout, stop=self._stop)
            writer.sweep(self._store, save, self._keep)
