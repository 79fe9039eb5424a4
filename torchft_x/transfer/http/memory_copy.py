"""Copies a snapshot from the memory of a source that shares it with this process.

Data copied from memory have no digest, since they were not sent. The connection that holds the snapshot confirms at
the end that the source kept the memory unchanged.
"""

from __future__ import annotations

import http.client
import logging
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from torchft_x.errors import TransferError
from torchft_x.transfer.format.blocks import share_out
from torchft_x.transfer.http.client import BROKEN, Source
from torchft_x.transfer.http.receiver import Receiver, Transfer
from torchft_x.transfer.shared_memory import SharedFile

log = logging.getLogger(__name__)

# Seconds between two requests whether the memory is still held. They are the only sign of progress that the source
# sees; the others may give up a copy that stands still for two seconds (decision 43).
CONFIRM_EVERY = 0.25


class _MemoryLost(Exception):
    """Raised if no one confirms that the memory was held all the time."""


def copy_from_memory(source: Source, transfer: Transfer, threads: int) -> bool:
    """Copy every block from the source's memory by at most `threads` threads, which have stopped at the end.

    Return False if this process can't read the memory, or if it was not held. Raises `TransferError` after the deadline.
    """
    if not (source.manifest.memory and transfer.blocks):
        return False
    file = SharedFile.open(source.manifest.memory, max(b.start + b.nbytes for b in transfer.blocks))
    if file is None:
        return False
    try:
        _copy(source, transfer, file, threads)
        return True
    except (OSError, _MemoryLost) as e:
        log.debug("%r: what was copied from its memory is fetched again: %r", source, e)
        return False
    finally:
        file.close()


def _copy(source: Source, transfer: Transfer, file: SharedFile, threads: int) -> None:
    stopped = threading.Event()

    def copy(first: int, end: int) -> None:
        for _ in Receiver(transfer).copy(source, file, first, end):
            if stopped.is_set():
                return

    with ThreadPoolExecutor(threads, "checkpoint-fetch") as pool:
        try:
            running = {pool.submit(copy, *part) for part in share_out(transfer.blocks, threads)}
            confirmed = 0  # bytes copied when the source was asked last
            while running:
                ended, running = wait(running, min(max(source.left(), 0.0), CONFIRM_EVERY), FIRST_EXCEPTION)
                for each in ended:
                    each.result()
                if running and source.left() <= 0:
                    raise source.error("timed out, as its deadline is over.")
                if running and transfer.progress.done != confirmed:
                    confirmed = transfer.progress.done
                    _confirm(source)
        finally:  # also after Ctrl-C: no thread may go on writing into the caller's tensors
            stopped.set()
    _confirm(source)


def _confirm(source: Source) -> None:
    """Raise `_MemoryLost` unless the connection that was given the snapshot still holds it."""
    manifest = source.manifest
    try:
        response = source.get(manifest.connection, f"/snapshot/{manifest.snapshot}/held")
        response.read()
    except BROKEN as e:
        source.discard(manifest.connection)
        raise _MemoryLost(repr(e)) from None
    except TransferError as e:
        raise _MemoryLost(str(e)) from None
    if response.status != http.client.OK:
        raise _MemoryLost(f"it answers {response.status}")
