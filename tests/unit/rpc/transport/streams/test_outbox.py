"""Messages on their way through one stream, against a write the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from torchft_x.rpc.transport import loop
from torchft_x.rpc.transport.streams.outbox import Outbox


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
