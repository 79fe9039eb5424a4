"""Ordered queue of the outgoing messages of one stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Write = Callable[[bytes], Coroutine[Any, Any, None]]


class Outbox:
    """Queue of messages for one gRPC stream, which takes one at a time. On the loop's thread; `put` never waits."""

    def __init__(self, write: Write) -> None:
        self._write = write  # gRPC's write method
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()  # None ends `run`

    def __len__(self) -> int:
        """Return the number of waiting messages."""
        return self._queue.qsize()

    def put(self, data: bytes) -> None:
        """Send a message after all waiting ones."""
        self._queue.put_nowait(data)

    def end(self) -> None:
        """End `run` after the messages put so far."""
        self._queue.put_nowait(None)

    def drop(self) -> None:
        """Discard the waiting messages."""
        while not self._queue.empty():
            self._queue.get_nowait()

    async def run(self) -> None:
        """Send messages until the end is reached. Raises the errors of gRPC's write."""
        while (data := await self._queue.get()) is not None:
            await self._write(data)
