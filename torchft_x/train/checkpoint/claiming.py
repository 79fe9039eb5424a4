"""Claims a checkpoint URL for a job by periodic writes, so that two jobs never write to one. Runs on rank 0."""

from __future__ import annotations

import threading
import time

from torchft_x.core.training.save_duty import Claim, Entry
from torchft_x.errors import TransferError
from torchft_x.timing import TIMING
from torchft_x.transfer.durable.claim import read_claim, write_claim
from torchft_x.transfer.durable.sealed import TornError
from torchft_x.transfer.durable.store import DeniedError, Store


class Claiming:
    """Thread that reads and renews the claim every `TIMING.claim_beat` seconds while this group is on duty to save."""

    def __init__(self, store: Store, job: str) -> None:
        self._store = store
        self._job = job
        self._claim = Claim(job)
        self._changed = threading.Condition()  # guards the next four attributes
        self._on_duty = False
        self._closed = False
        self._wrote = False  # this job's claim was written
        self.refused = ""  # why this job must not write at the URL; empty if that is not known
        self._beat = 0
        self._thread: threading.Thread | None = None

    def be_on_duty(self, value: bool) -> None:
        """Start or pause the claim, without waiting."""
        if value is self._on_duty:
            return
        with self._changed:
            self._on_duty = value
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="torchft_x-checkpoint-claim", daemon=True)
            self._thread.start()

    def wait(self, timeout: float) -> None:
        """Wait until this job has claimed the URL. Raises `TransferError` if it can't within `timeout` seconds."""
        with self._changed:
            known = self._changed.wait_for(lambda: self._closed or self.refused or self._wrote, timeout)
            if self.refused or not known:
                raise TransferError(self.refused or f"checkpoint {self._store.shown}: it could not be claimed.")

    def close(self, *, over: bool, wait: float = 0.0) -> None:
        """Stop the thread, waiting for it up to `wait` seconds.

        With `over` the job is done, and other jobs may claim the URL at once.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(wait)
        if over and self._wrote and not self.refused:
            write_claim(self._store, self._job, self._beat, over=True)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._on_duty)
                if self._closed:
                    return
            try:
                self._look()
            except DeniedError as e:
                if not self._wrote:
                    self._refuse(str(e))
                    return
            except TransferError:
                pass  # if a save fails too, it reports the error
            if self.refused:
                return
            with self._changed:
                self._changed.wait_for(lambda: self._closed, TIMING.claim_beat)

    def _look(self) -> None:
        entry = self._read()
        why = self._claim.seen(entry, time.monotonic())
        if why:
            self._refuse(f"checkpoint {self._store.shown}: {why}; give each job a URL of its own.")
        elif self._claim.ours:
            self._beat = max(self._beat, entry.beat if entry is not None else 0) + 1
            write_claim(self._store, self._job, self._beat)
            with self._changed:
                self._wrote = True
                self._changed.notify_all()

    def _read(self) -> Entry | None:
        try:
            found = read_claim(self._store)
        except TornError:
            return None if self._claim.ours else Entry("", 0, False)
        return None if found is None else Entry(*found)

    def _refuse(self, why: str) -> None:
        with self._changed:
            self.refused = why
            self._changed.notify_all()
