"""Ordered queue of the outgoing messages of one stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, cast

Write = Callable[[bytes], Coroutine[Any, Any, None]]


class StartedWrite:
    """Coroutine that has already run as far as it can without waiting. Awaiting it, once, runs the rest.

    A write that is started this way sends its message now; a task would start it in the loop's next iteration.
    """

    __slots__ = ("_coro", "_failure", "_first", "_fresh")

    def __init__(self, coro: Coroutine[Any, Any, None]) -> None:
        self._coro = coro
        self._first: Any = None  # the future that the coroutine waits for
        self._failure: BaseException | None = None  # how the coroutine ended, if it needed no wait
        self._fresh = True  # `send` has delivered neither of these yet
        try:
            self._first = coro.send(None)
        except BaseException as e:  # also StopIteration; `send` raises it to the awaiting coroutine
            self._failure = e

    def __await__(self) -> Generator[Any, Any, None]:
        return cast("Generator[Any, Any, None]", self)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        if self._fresh:
            self._fresh = False
            if self._failure is not None:
                raise self._failure
            return self._first
        return self._coro.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coro.throw(*error)

    def close(self) -> None:
        self._coro.close()


class Outbox:
    """Queue of messages for one gRPC stream, which takes one at a time. On the loop's thread; `put` never waits."""

    def __init__(self, write: Write) -> None:
        self._write = write  # gRPC's write method
        self._queue: asyncio.Queue[bytes | StartedWrite | None] = asyncio.Queue()  # None ends `run`
        self._idle = False  # `run` waits for the next message

    def __len__(self) -> int:
        """Return the number of waiting messages."""
        return self._queue.qsize()

    def put(self, data: bytes) -> None:
        """Send a message after all waiting ones, or at once if there are none."""
        if self._idle:
            self._idle = False
            self._queue.put_nowait(StartedWrite(self._write(data)))
        else:
            self._queue.put_nowait(data)

    def end(self) -> None:
        """End `run` after the messages put so far."""
        self._idle = False
        self._queue.put_nowait(None)

    def drop(self) -> None:
        """Discard the waiting messages."""
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if isinstance(item, StartedWrite):
                item.close()

    async def run(self) -> None:
        """Send messages until the end is reached. Raises the errors of gRPC's write."""
        while True:
            self._idle = self._queue.empty()
            item = await self._queue.get()
            if item is None:
                return
            await (item if isinstance(item, StartedWrite) else self._write(item))
