"""Copies a snapshot from the memory of a source that shares it with this process.

Data copied from memory have no digest, since they were not sent. The connection that holds the snapshot confirms at
the end that the source kept the memory unchanged.
"""

from __future__ import annotations

import http.client
import threading

from torchft_x.errors import TransferError
from torchft_x.transfer.format.blocks import share_out
from torchft_x.transfer.http.client import BROKEN, Source
from torchft_x.transfer.http.receiver import Receiver, Transfer
from torchft_x.transfer.shared_memory import SharedFile

# Seconds between two requests whether the memory is still held. They are the only sign of progress that the source
# sees; the others may give up a copy that stands still for two seconds (decision 43).
CONFIRM_EVERY = 0.25


class MemoryLost(Exception):
    """Raised if the source's memory can't be read, or if no one confirms that it was held all the time."""


class MemoryCopy:
    """One copy from a source's memory. The owner must `close` it."""

    def __init__(self, source: Source, transfer: Transfer, file: SharedFile) -> None:
        self._source = source
        self._transfer = transfer
        self._file = file
        self._lock = threading.Lock()
        self._failure: BaseException | None = None  # the first exception of any thread; guarded by the lock
        self._copied = 0  # number of copied blocks, approximate: a lost count among several threads does no harm
        self._shown = 0  # `_copied` when the source was asked last

    @staticmethod
    def find(source: Source, transfer: Transfer) -> MemoryCopy | None:
        """Return a copy from the source's memory, or None if it names none that this process can read."""
        if not (source.manifest.memory and transfer.blocks):
            return None
        file = SharedFile.open(source.manifest.memory, max(b.start + b.nbytes for b in transfer.blocks))
        return None if file is None else MemoryCopy(source, transfer, file)

    def close(self) -> None:
        self._file.close()

    def run(self, threads: int) -> None:
        """Copy every block by at most `threads` threads. When it returns or raises, all of them have stopped.

        Raises `MemoryLost`, or `TransferError` after the deadline.
        """
        workers = [
            threading.Thread(target=self._copy, args=part, name="checkpoint-fetch", daemon=True)
            for part in share_out(self._transfer.blocks, threads)
        ]
        started: list[threading.Thread] = []
        source = self._source
        try:
            for worker in workers:
                worker.start()
                started.append(worker)
            for worker in started:
                while worker.is_alive():
                    if source.left() <= 0:
                        raise source.error("timed out, as its deadline is over.")
                    self._show_progress()
                    worker.join(min(max(source.left(), 0.0), CONFIRM_EVERY))
        except BaseException as e:  # also Ctrl-C: no thread may go on writing into the caller's tensors
            self._fail(e)
            for worker in started:
                worker.join()
        if self._failure is not None:
            raise self._failure
        self._confirm()

    def _copy(self, first: int, end: int) -> None:
        """Copy one range. Never raises."""
        try:
            for _ in Receiver(self._transfer).copy(self._source, self._file, first, end):
                self._copied += 1
                if self._failure is not None:
                    return
        except OSError as e:
            self._fail(MemoryLost(repr(e)))
        except BaseException as e:
            self._fail(e)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = error

    def _show_progress(self) -> None:
        """Ask the source for a confirmation if the copy has progressed since the last one."""
        copied = self._copied
        if copied != self._shown:
            self._shown = copied
            self._confirm()

    def _confirm(self) -> None:
        """Raise `MemoryLost` unless the connection that was given the snapshot still holds it."""
        manifest = self._source.manifest
        try:
            response = self._source.get(manifest.connection, f"/snapshot/{manifest.snapshot}/held")
            response.read()
        except BROKEN as e:
            self._source.discard(manifest.connection)
            raise MemoryLost(repr(e)) from None
        except TransferError as e:
            raise MemoryLost(str(e)) from None
        if response.status != http.client.OK:
            raise MemoryLost(f"it answers {response.status}")
