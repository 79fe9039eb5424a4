"""Moves the blocks of a snapshot into a landing, by parallel streams, or from memory if the source shares it with this
process. Wire form: http_wire.

A range whose connection breaks goes on behind its last good block, until the deadline. A wrong digest ends the fetch.
What is copied from memory was not sent, so it has no digest; that the source kept it unchanged until the end is confirmed
by the connection that held it all the time. If it can't be, everything is fetched by streams.
"""

from __future__ import annotations

import http.client
import logging
import threading
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from torchft_x.errors import TransferError
from torchft_x.transfer.format.blocks import Block, cut_blocks, digest, share_out
from torchft_x.transfer.format.landing import Landing
from torchft_x.transfer.format.layout import Layout
from torchft_x.transfer.format.limits import BLOCK_BYTES
from torchft_x.transfer.format.memory import allocate, memory_of, populate
from torchft_x.transfer.http.client import BROKEN, Manifest, Retry, Source
from torchft_x.transfer.http.wire import DIGEST_BYTES, shut
from torchft_x.transfer.shared_memory import SharedFile

log = logging.getLogger(__name__)

# Seconds between two questions whether the memory is still held. They are all that the source sees of a copy that moves; one
# that stands still for two seconds the others may give up (decision 43).
CONFIRM_EVERY = 0.25


class _MemoryLost(Exception):
    """The source's memory can't be read, or nobody says that it was held all the time."""


class Fetch:
    """One fetch of one snapshot from one source."""

    def __init__(
        self,
        source: Source,
        manifest: Manifest,
        layout: Layout,
        landing: Landing,
        paths: Mapping[int, str],
        *,
        digests: bool = True,
    ) -> None:
        self.source = source
        self.snapshot = manifest.snapshot
        self.landing = landing
        self.blocks = cut_blocks(layout.blobs)
        self.paths = paths  # a blob's index -> path of its first tensor, for people
        self.digests = digests  # whether to ask for digests and compare them
        self.torn = False  # whether memory of the caller was written to; set by any stream, never unset
        self._lock = threading.Lock()  # guards what follows
        self._failure: BaseException | None = None  # the first of any stream
        self._sockets = {manifest.connection.sock}  # every one in use; shut down to stop the streams
        self._idle: list[http.client.HTTPConnection] = [manifest.connection]  # for the stream that asks first
        self._holder = manifest.connection
        self._file: SharedFile | None = None  # the snapshot's memory
        self._copied = 0  # blocks from it, about; a lost count among several threads does no harm
        self._shown = 0  # of them, when the source was asked last

    def find_memory(self, name: str) -> None:
        """Copy the blocks from the memory that the source calls `name`, if it is on this host and may be read."""
        if name and self.blocks:
            self._file = SharedFile.open(name, max(b.start + b.nbytes for b in self.blocks))

    def run(self, streams: int) -> None:
        """Fetch every block by at most `streams` threads. When it returns or raises, all of them have stopped.

        Raises `TransferError` or `TokenError`.
        """
        if self._file is not None:
            try:
                self._in_threads(self._copy, streams, self._show_progress)
                self._confirm()
                return
            except _MemoryLost as e:
                log.debug("%s: what was copied from its memory is fetched again: %s", self.source.address.url, e)
                self._failure = None
        self._in_threads(self._stream, streams)

    def _in_threads(
        self, work: Callable[[int, int], None], streams: int, meanwhile: Callable[[], None] | None = None
    ) -> None:
        """Call `work` for ranges of blocks in as many threads, and `meanwhile` now and then in this one."""
        threads = [
            threading.Thread(target=work, args=part, name="checkpoint-fetch", daemon=True)
            for part in share_out(self.blocks, streams)
        ]
        started: list[threading.Thread] = []
        try:
            for thread in threads:
                thread.start()
                started.append(thread)
            for thread in started:
                while True:
                    thread.join(min(max(self.source.left(), 0.0), CONFIRM_EVERY))
                    if not thread.is_alive():
                        break
                    if self.source.left() <= 0:  # for instance a source that sends a byte now and then
                        raise self.source.error("the deadline is over.")
                    if meanwhile is not None:
                        meanwhile()
        except BaseException as e:  # also Ctrl-C: no thread may go on writing into the caller's tensors
            self._fail(e)
            for thread in started:
                thread.join()
        if self._failure is not None:
            raise self._failure

    @property
    def stopped(self) -> bool:
        return self._failure is not None

    def _stream(self, first: int, end: int) -> None:
        """Fetch one range, over as many connections as it takes. Never raises."""
        try:
            receiver = _Receiver(self)
            retry = Retry(self.source)
            while first < end and not self.stopped:
                before = first
                connection = None
                try:
                    connection = self._connect()
                    for done in receiver.receive(connection, first, end):
                        first = done  # where to go on if the connection breaks
                        if self.stopped:
                            return
                except BROKEN as e:
                    if self.stopped:
                        return
                    if first > before:
                        retry.progress()
                    retry.broken(e)
                finally:
                    if connection is not None and first < end:
                        connection.close()
        except BaseException as e:
            self._fail(e)

    def _copy(self, first: int, end: int) -> None:
        """Copy one range from memory. Never raises."""
        try:
            assert self._file is not None
            for _ in _Receiver(self).copy(self._file, first, end):
                self._copied += 1
                if self.stopped:
                    return
        except BaseException as e:
            self._fail(e)

    def _show_progress(self) -> None:
        """Ask the source if the copy has moved, and only then."""
        copied = self._copied
        if copied != self._shown:
            self._shown = copied
            self._confirm()

    def _confirm(self) -> None:
        """Raise `_MemoryLost` unless the connection that was given the snapshot still holds it."""
        try:
            response = self.source.get(self._holder, f"/snapshot/{self.snapshot}/held")
            response.read()
        except BROKEN as e:
            self._idle.remove(self._holder)
            raise _MemoryLost(repr(e)) from None
        except TransferError as e:
            raise _MemoryLost(str(e)) from None
        if response.status != http.client.OK:
            raise _MemoryLost(f"it answers {response.status}")

    def _connect(self) -> http.client.HTTPConnection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        connection = self.source.connect()
        with self._lock:
            self._sockets.add(connection.sock)
        if self.stopped:
            connection.close()
        return connection

    def _fail(self, error: BaseException) -> None:
        """Keep the first failure and stop every stream."""
        with self._lock:
            if self._failure is None:
                self._failure = error
        if not isinstance(error, _MemoryLost):
            self._stop_sockets()

    def _stop_sockets(self) -> None:
        with self._lock:
            sockets = list(self._sockets)
        for s in sockets:
            shut(s)

    def close(self) -> None:
        """Let go of the snapshot at the source."""
        self._stop_sockets()
        for s in self._sockets:
            s.close()
        if self._file is not None:
            self._file.close()


class _Receiver:
    """What one stream needs to receive blocks."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        landing = fetch.landing
        on_cpu = all(m.device.type == "cpu" for m in landing.memory)
        # Shared blocks, and what goes to an accelerator, arrive here first.
        self._scratch = allocate(BLOCK_BYTES, pinned=not on_cpu)
        self._scratch_memory = memory_of(self._scratch)
        self._direct = [memory_of(m) if m.device.type == "cpu" else None for m in landing.memory]
        self._digest = bytearray(DIGEST_BYTES)

    def receive(self, connection: http.client.HTTPConnection, first: int, end: int) -> Iterator[int]:
        """Receive blocks first..end-1, and after each yield the index of the next."""
        fetch = self._fetch
        blocks = fetch.blocks[first:end]
        sock = connection.sock
        response = fetch.source.get(
            connection, f"/snapshot/{fetch.snapshot}/{first}/{end}" + ("" if fetch.digests else "?digest=0")
        )
        expected = sum(b.nbytes for b in blocks) + (len(blocks) * DIGEST_BYTES if fetch.digests else 0)
        if response.status != http.client.OK or response.length != expected:
            raise fetch.source.error(
                f"its answer ({response.status}) for blocks {first} to {end - 1} has {response.length} bytes, "
                f"expected {expected}."
            )
        for index, block in enumerate(blocks, first):
            sock.settimeout(self._left(index))
            data, memory = self._place(block)
            _read_into(response, memory)
            if fetch.digests:
                self._check(response, data, block, index)
            self._scatter(block)
            yield index + 1

    def copy(self, file: SharedFile, first: int, end: int) -> Iterator[int]:
        """The same from memory. Raises `_MemoryLost`."""
        for index in range(first, end):
            self._left(index)
            block = self._fetch.blocks[index]
            _, memory = self._place(block)
            try:
                file.read(memory, block.start)
            except OSError as e:
                raise _MemoryLost(repr(e)) from None
            self._scatter(block)
            yield index + 1

    def _left(self, index: int) -> float:
        """Seconds until the deadline. Raises `TransferError` behind it."""
        left = self._fetch.source.left()
        if left <= 0:
            raise self._fetch.source.error(f"the deadline is over at block {index} of {len(self._fetch.blocks)}.")
        return left

    def _place(self, block: Block) -> tuple[Tensor, memoryview]:
        """Where a block is received: its place in the state, or scratch memory if it is not in one place there."""
        fetch, piece = self._fetch, block.pieces[0]
        blob_memory = self._direct_memory(block)
        if blob_memory is None:
            return self._scratch[: block.nbytes], self._scratch_memory[: block.nbytes]
        data = fetch.landing.memory[piece.blob][piece.blob_offset : piece.blob_offset + piece.nbytes]
        if fetch.landing.in_place[piece.blob]:
            fetch.torn = True
        else:
            populate(data)
        return data, blob_memory[piece.blob_offset : piece.blob_offset + piece.nbytes]

    def _direct_memory(self, block: Block) -> memoryview | None:
        """Of the blob that a block is part of, if it can be received there."""
        return self._direct[block.pieces[0].blob] if len(block.pieces) == 1 else None

    def _check(self, response: http.client.HTTPResponse, data: Tensor, block: Block, index: int) -> None:
        """Receive a block's digest and compare. Raises `TransferError`."""
        _read_into(response, memoryview(self._digest))
        if digest(data) != int.from_bytes(self._digest, "big"):
            paths = ", ".join(self._fetch.paths[p.blob] for p in block.pieces[:3])
            raise self._fetch.source.error(f"the digest of block {index} is wrong, it holds {paths}.")

    @torch.no_grad()
    def _scatter(self, block: Block) -> None:
        """From scratch memory to its places, if it was received there."""
        if self._direct_memory(block) is not None:
            return
        landing = self._fetch.landing
        for p in block.pieces:
            self._fetch.torn = self._fetch.torn or landing.in_place[p.blob]
            arrived = self._scratch[p.block_offset : p.block_offset + p.nbytes]
            landing.memory[p.blob][p.blob_offset : p.blob_offset + p.nbytes].copy_(arrived)


def _read_into(response: http.client.HTTPResponse, memory: memoryview) -> None:
    done = 0
    while done < len(memory):
        n = response.readinto(memory[done:])
        if n == 0:
            raise ConnectionError("the source closed the connection in the middle")
        done += n
