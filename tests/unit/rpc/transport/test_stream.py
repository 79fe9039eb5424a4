"""The server's side of a stream, against a context the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from torchft_x.errors import ConfigError, DeadlineError
from torchft_x.rpc.transport import loop, stream
from torchft_x.rpc.transport.stream import Outbox


class Context:
    """What gRPC gives a handler."""

    def __init__(self, incoming: list[bytes], *, stuck: bool = False, left: float | None = None) -> None:
        self.incoming = incoming
        self.written: list[bytes] = []
        self.stuck = stuck  # never takes a message off our hands
        self.left = left
        self.aborted: tuple[grpc.StatusCode, str] | None = None

    async def read(self) -> Any:
        await asyncio.sleep(0)
        return self.incoming.pop(0) if self.incoming else grpc.aio.EOF

    async def write(self, data: bytes) -> None:
        if self.stuck:
            await asyncio.sleep(1000)
        self.written.append(data)

    def peer(self) -> str:
        return "the test"

    def time_remaining(self) -> float | None:
        return self.left

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.aborted = (code, details)
        raise grpc.aio.AbortError


def test_what_was_sent_before_the_end_is_delivered_and_nothing_after() -> None:
    async def run() -> list[bytes]:
        context = Context([b"one", b"two"])
        s = stream.Stream(context)

        def on_message(data: bytes) -> None:
            s.send(b"re:" + data)
            s.finish()
            s.send(b"too late")

        await asyncio.wait_for(s.serve(on_message), 5.0)
        return context.written

    assert loop.call(run(), 10.0) == [b"re:one"]


def test_a_reader_that_is_stuck_is_cut_off_and_costs_no_memory() -> None:
    async def run() -> tuple[bool, int]:
        s = stream.Stream(Context([], stuck=True))
        for _ in range(stream.MAX_OUTBOX + 10):
            s.send(b"x")
        return s.ending, len(s._outbox)

    assert loop.call(run(), 10.0) == (True, 1)


def test_the_answer_comes_before_the_callers_deadline() -> None:
    left = 0.2

    async def run() -> float:
        gone: list[bool] = []
        clock = asyncio.get_running_loop().time
        begun = clock()
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        with pytest.raises(DeadlineError, match="Because"):
            await stream.answer(
                waiting, Context([], left=left), gone=lambda: gone.append(True), why=lambda: "Because of this."
            )
        assert gone == [True]
        return clock() - begun

    assert 0.5 * left < loop.call(run(), 10.0)


def test_an_error_of_ours_becomes_its_status() -> None:
    async def fail(_request: bytes, _context: Any) -> bytes:
        raise ConfigError("Other buckets.")

    async def run() -> Any:
        context = Context([])
        with pytest.raises(grpc.aio.AbortError):
            await stream.answering(fail)(b"", context)
        return context.aborted

    assert loop.call(run(), 10.0) == (grpc.StatusCode.INVALID_ARGUMENT, "Other buckets.")


class Wire:
    """Takes one message at a time, as gRPC does."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.done: list[bytes] = []
        self.cancelled: list[bytes] = []
        self.free = asyncio.Event()
        self.free.set()
        self.breaks_at = b""

    async def write(self, data: bytes) -> None:
        assert len(self.begun) == len(self.done), "one at a time"
        self.begun.append(data)
        if data == self.breaks_at:
            raise ConnectionError("it broke")
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.cancelled.append(data)
            raise
        await asyncio.sleep(0)
        self.done.append(data)


def on_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on the servers' loop."""

    def run() -> None:
        loop.call(asyncio.wait_for(test(), 10.0), 20.0)

    run.__name__ = test.__name__  # type: ignore[attr-defined]
    return run


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def started(wire: Wire) -> tuple[Outbox, asyncio.Future[None]]:
    """An outbox, and its `run`."""
    outbox = Outbox(wire.write)
    sender = asyncio.ensure_future(outbox.run())
    await asyncio.sleep(0)
    return outbox, sender


@on_loop
async def test_messages_follow_each_other_in_order() -> None:
    wire = Wire()
    outbox, sender = await started(wire)
    wire.free.clear()
    for data in (b"one", b"two", b"three"):
        outbox.put(data)
    await until(lambda: wire.begun == [b"one"])
    wire.free.set()
    await until(lambda: len(wire.done) == 3)
    outbox.put(b"four")
    outbox.end()
    await sender
    assert wire.done == [b"one", b"two", b"three", b"four"]


@on_loop
async def test_what_is_put_before_it_runs_and_after_its_end_waits() -> None:
    wire = Wire()
    outbox = Outbox(wire.write)
    outbox.put(b"one")
    assert (wire.begun, len(outbox)) == ([], 1)
    sender = asyncio.ensure_future(outbox.run())
    await until(lambda: wire.done == [b"one"])
    outbox.end()
    outbox.put(b"too late")
    await sender
    assert wire.done == [b"one"]


@on_loop
async def test_a_write_that_fails_at_once_is_told_by_run() -> None:
    wire = Wire()
    wire.breaks_at = b"one"
    outbox, sender = await started(wire)
    outbox.put(b"one")  # does not raise
    with pytest.raises(ConnectionError):
        await sender


@on_loop
async def test_a_write_that_is_cancelled_hears_of_it() -> None:
    wire = Wire()
    wire.free.clear()
    outbox, sender = await started(wire)
    outbox.put(b"one")
    await until(lambda: wire.begun == [b"one"])
    sender.cancel()
    await asyncio.wait({sender})
    assert wire.cancelled == [b"one"]


@on_loop
async def test_what_is_dropped_is_never_sent() -> None:
    wire = Wire()
    wire.free.clear()
    outbox, sender = await started(wire)
    outbox.put(b"one")
    await until(lambda: wire.begun == [b"one"])
    outbox.put(b"two")
    outbox.drop()
    assert len(outbox) == 0
    outbox.end()
    wire.free.set()
    await sender
    assert wire.done == [b"one"]
