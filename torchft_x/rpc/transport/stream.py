"""Server side of streams and calls: an ordered outbox, an end from either side, answers before the deadline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import grpc
import grpc.aio

from torchft_x.errors import DeadlineError, TorchftXError
from torchft_x.rpc.transport.grpc_errors import code_of
from torchft_x.rpc.transport.grpc_options import time_left

log = logging.getLogger(__name__)

UnaryHandler = Callable[[bytes, Any], Awaitable[bytes]]
MAX_OUTBOX = 1024
"""Messages that may wait for one reader. A reader that lags further behind is stuck, and its stream is closed."""


class Outbox:
    """Queue of messages for one gRPC stream, which takes one at a time. On the loop's thread; `put` never waits."""

    def __init__(self, write: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
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


class Stream:
    """Server side of one stream. Everything happens on the loop's thread; `send` never waits."""

    def __init__(self, context: Any) -> None:
        self._context = context  # gRPC's side of this stream
        self._outbox = Outbox(context.write)
        self.ending = False  # True: no more messages are sent, and arriving ones are ignored

    def send(self, data: bytes) -> None:
        if self.ending:
            return
        if len(self._outbox) >= MAX_OUTBOX:
            log.warning("%s doesn't read; its stream is closed", self._context.peer())
            self.ending = True
            self._outbox.drop()
            self._outbox.end()
        else:
            self._outbox.put(data)

    def finish(self) -> None:
        """End the stream from our side, after everything sent so far."""
        if not self.ending:
            self.ending = True
            self._outbox.end()

    async def serve(self, on_message: Callable[[bytes], None] | None) -> None:
        """Deliver messages in order until either side ends. If `on_message` is None, the client only listens."""
        tasks = {asyncio.ensure_future(self._outbox.run())}
        if on_message is not None:
            tasks.add(asyncio.ensure_future(self._read(on_message)))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except grpc.aio.UsageError:  # the stream broke while we wrote
            pass
        finally:
            for task in tasks:
                task.cancel()

    async def _read(self, on_message: Callable[[bytes], None]) -> None:
        while (data := await self._context.read()) is not grpc.aio.EOF:
            if not self.ending:
                on_message(data)
            if self.ending:
                await asyncio.sleep(3600)  # until the writer is done


def unary_service(name: str, **methods: UnaryHandler) -> grpc.GenericRpcHandler:
    """Make a service of unary methods that take and return bytes. Their `TorchftXError` reaches the caller."""
    handlers = {method: grpc.unary_unary_rpc_method_handler(answering(run)) for method, run in methods.items()}
    return grpc.method_handlers_generic_handler(name, handlers)


def answering(handler: UnaryHandler) -> UnaryHandler:
    """Wrap a unary handler so that each `TorchftXError` becomes a status with its sentence."""

    async def run(request: bytes, context: Any) -> bytes:
        try:
            return await handler(request, context)
        except TorchftXError as e:
            error: TorchftXError = e
        await context.abort(code_of(error), str(error))
        raise AssertionError("abort returned")  # it always raises

    return run


async def answer(future: asyncio.Future[Any], context: Any, *, gone: Callable[[], None], why: Callable[[], str]) -> Any:
    """Return the future's result, or raise `DeadlineError(why())` just before the deadline, while the caller listens.

    `gone` runs when the caller leaves (deadline, cancel, broken connection) before the answer.
    """
    left = time_left(context)
    try:
        await asyncio.wait({future}, timeout=None if left is None else max(0.0, left))
        if future.done():
            return future.result()
        raise DeadlineError(why())
    finally:
        if not future.done():
            future.cancel()
            gone()
