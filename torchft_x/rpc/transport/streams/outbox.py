"""What is on its way to the other end of one stream, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, cast

Write = Callable[[bytes], Coroutine[Any, Any, None]]


class Begun:
    """A coroutine that has run as far as it can without waiting. Awaited once, it goes on from there.

    A message whose write is begun so is on its way; left to a task, it would wait for the loop's next turn.
    """

    __slots__ = ("_coro", "_failure", "_first", "_fresh")

    def __init__(self, coro: Coroutine[Any, Any, None]) -> None:
        self._coro = coro
        self._first: Any = None  # what it waits for
        self._failure: BaseException | None = None  # how it has ended already
        self._fresh = True  # nobody has been told of either
        try:
            self._first = coro.send(None)
        except BaseException as e:  # StopIteration, too: raised where it is awaited
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
    """Messages for one stream of gRPC, which takes one at a time. On the loop's thread; `put` never waits."""

    def __init__(self, write: Write) -> None:
        self._write = write  # gRPC's
        self._queue: asyncio.Queue[bytes | Begun | None] = asyncio.Queue()  # None: the end
        self._idle = False  # `run` waits for the next message

    def __len__(self) -> int:
        """Messages that wait."""
        return self._queue.qsize()

    def put(self, data: bytes) -> None:
        """Send it after all others: at once, if there are none."""
        if self._idle:
            self._idle = False
            self._queue.put_nowait(Begun(self._write(data)))
        else:
            self._queue.put_nowait(data)

    def end(self) -> None:
        """Nothing comes after what was put so far."""
        self._idle = False
        self._queue.put_nowait(None)

    def drop(self) -> None:
        """Forget what waits."""
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if isinstance(item, Begun):
                item.close()

    async def run(self) -> None:
        """Send everything, up to the end. Raises what gRPC's write raises."""
        while True:
            self._idle = self._queue.empty()
            item = await self._queue.get()
            if item is None:
                return
            await (item if isinstance(item, Begun) else self._write(item))
