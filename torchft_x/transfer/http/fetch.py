"""Moves a snapshot's blocks into a landing by parallel streams, from one source or several at a time (`wire`).

A range whose connection breaks is continued behind its last good block, until the deadline. A source that is gone,
refuses, sends a wrong digest or is far slower than the others is dropped, and the others send the rest. The last
source's error ends the fetch.

All sources of a fetch offer the same bytes: a further one takes part if its manifest equals the first one's, and the
digests of all blocks are known by then. So a block may come from any source, and a block with another digest is
rejected.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from torchft_x.core.types import State
from torchft_x.errors import TransferError
from torchft_x.timing import ANSWER, POLL
from torchft_x.transfer.http.client import BROKEN, Retry, Source
from torchft_x.transfer.http.receiver import Receiver, Transfer
from torchft_x.transfer.http.work_queue import WorkQueue

log = logging.getLogger(__name__)

# Seconds that further sources wait for the first one's digests; then theirs are compared with the blocks that it has
# sent.
COMPARE = 2.0


class Fetch:
    """One fetch of one state. `first` is the source that has answered already."""

    def __init__(self, first: Source, state: State, transfer: Transfer, streams: int) -> None:
        self._first = first
        self._state = state
        self._transfer = transfer
        self._streams = min(streams, len(transfer.blocks))  # streams of each source
        self._compared = threading.Event()  # set when the first source's digests are known, or won't be
        self._changed = threading.Condition()  # guards the fields below
        self._queue = WorkQueue(len(transfer.blocks))
        self._digests: list[int | None] = [None] * len(transfer.blocks)  # common to all sources; None: unknown
        self._sources = [first]
        self._source_of: list[Source] = []  # source of each stream
        self._starting = self._streams  # streams of the first source that have not begun
        self._writing = 0  # streams that may write to memory now
        self._dropped: set[Source] = set()
        self._left = 1  # sources that are not dropped, including those that are joining
        self._until = first.deadline
        self._failure: BaseException | None = None  # error of the source that was dropped first
        self._ended = False

    def run(self, mirrors: Sequence[Callable[[], Source]] = ()) -> None:
        """Fetch every block. Each of `mirrors` returns a further source. Afterwards, even on errors, no thread writes.

        Raises `TransferError` or `TokenError`.
        """
        self._left += len(mirrors)
        error: BaseException | None = None
        try:
            self._start(self._first)
            if mirrors:
                _thread(self._compare_first)
            for locate in mirrors:
                _thread(self._join, locate)
            with self._changed:
                while not self._queue.over and self._left and (left := self._until - time.monotonic()) > 0:
                    self._changed.wait(left)
                if not self._queue.over:
                    error = self._failure or self._first.error("timed out, as its deadline is over.")
        finally:  # also after Ctrl-C
            self._end()
        if error is not None:
            raise error

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            sources = list(self._sources)
        for source in sources:
            source.stop()
        with self._changed:
            while self._writing:
                self._changed.wait()
        for source in sources:
            source.close()

    def _start(self, source: Source) -> None:
        """Start the streams of a source."""
        with self._changed:
            if self._ended:
                return
            streams = range(len(self._source_of), len(self._source_of) + self._streams)
            self._source_of += [source] * self._streams
        for stream in streams:
            _thread(self._stream, source, stream)

    # --- further sources ----------------------------------------------------------------------------------------------

    def _compare_first(self) -> None:
        """Fetch the first source's digests, for the comparison with other sources."""
        try:
            self._compare(self._first, self._first.digests(len(self._digests)))
        except (*BROKEN, TransferError) as e:  # its streams will report more
            log.debug("no digests from %r: %s", self._first, e)
        finally:
            self._compared.set()

    def _join(self, locate: Callable[[], Source]) -> None:
        """Let one more source take part. Never raises."""
        source: Source | None = None
        try:
            source = locate()
            with self._changed:
                if self._ended:
                    return
                self._sources.append(source)
            if source.ask(self._state).text != self._first.manifest.text:
                raise source.error("its state has other values or another layout than that of the other sources.")
            self._compared.wait(COMPARE)
            if None in self._digests:
                self._compare(source, source.digests(len(self._digests)))
            log.debug("%r sends blocks, too", source)
            self._start(source)
        except BaseException as e:
            self._drop(source, e)

    def _compare(self, source: Source, digests: Sequence[int]) -> None:
        """Record a source's digests. Raises `TransferError` if they differ from known ones."""
        with self._changed:
            for index, (own, known) in enumerate(zip(digests, self._digests, strict=True)):
                if known is not None and own != known:
                    raise self._differs(source, index)
            self._digests = list(digests)

    def _differs(self, source: Source, index: int) -> TransferError:
        where = self._transfer.holds(index)
        return source.error(f"its state differs from that of the other sources in block {index}, which holds {where}.")

    def _drop(self, source: Source | None, error: BaseException) -> None:
        """Stop using a source, which may not even have been asked (None)."""
        with self._changed:
            if self._ended or source in self._dropped:
                return
            if source is not None:
                self._dropped.add(source)
            self._left -= 1
            self._failure = self._failure or error
            if self._dropped.issuperset(self._source_of):  # no source sends
                self._until = min(self._until, time.monotonic() + ANSWER)
            self._changed.notify_all()
            left = self._left
        if left:
            log.info("a source of the state is given up, %d more are asked: %s", left, error)
        if source is not None:
            source.stop()

    # --- streams ------------------------------------------------------------------------------------------------------

    def _stream(self, source: Source, stream: int) -> None:
        """Fetch blocks as long as there are any, over as many connections as needed. Never raises."""
        try:
            receiver = Receiver(self._transfer)
            retry = Retry(source, self._pause)
            while self._receive(source, stream, receiver, retry):
                pass
        except BaseException as e:
            self._drop(source, e)

    def _receive(self, source: Source, stream: int, receiver: Receiver, retry: Retry) -> bool:
        """Receive a range, or its first part. Return whether to go on."""
        connection = None
        first = end = index = 0
        try:
            connection = source.connect()
            part = self._take(source, stream)
            if part is None:
                return False
            first, end = part
            index = first
            try:
                for digest in receiver.receive(source, connection, first, end):
                    more = self._arrived(source, stream, index, digest)
                    index += 1
                    if not more:
                        break
            finally:
                self._leave(stream)
        except BROKEN as e:
            if self._is_out(source):
                return False
            if index > first:
                retry.progress()
            retry.broken(e)
        finally:
            if connection is not None:
                if index == end:
                    source.put_back(connection)
                else:
                    source.discard(connection)
        return True

    def _take(self, source: Source, stream: int) -> tuple[int, int] | None:
        """Return the next range, which the stream may write from now on; wait for one. None: the stream ends."""
        while True:
            slow: Source | None = None
            with self._changed:
                if self._queue.over or self._is_out(source):
                    return None
                now = time.monotonic()
                part = self._queue.take(stream, now, max(self._starting, 1))
                if part is not None:
                    self._starting -= 1
                    self._writing += 1
                    return part
                others = (self._source_of[other] for other in self._queue.overdue(stream, now))
                slow = next((other for other in others if other is not source and other not in self._dropped), None)
                if slow is None:
                    self._changed.wait(POLL)
                    continue
            self._drop(slow, slow.error("it is far slower than the other sources, which have sent all but its part."))

    def _arrived(self, source: Source, stream: int, index: int, digest: int) -> bool:
        """Record that a block is in its place; return whether the next is the stream's, too. Raises `TransferError`."""
        with self._changed:
            if self._digests[index] not in (None, digest):
                raise self._differs(source, index)
            self._digests[index] = digest
            return self._queue.arrived(stream, time.monotonic())

    def _leave(self, stream: int) -> None:
        """Record that the stream no longer writes, and free its blocks."""
        with self._changed:
            self._queue.give_back(stream)
            self._writing -= 1
            self._changed.notify_all()

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._queue.over, seconds)

    def _is_out(self, source: Source) -> bool:
        """Return whether a source's streams must stop."""
        with self._changed:
            return self._ended or source in self._dropped


def _thread(work: Callable[..., None], *args: object) -> None:
    threading.Thread(target=work, args=args, name="checkpoint-fetch", daemon=True).start()
