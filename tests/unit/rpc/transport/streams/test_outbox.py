"""Messages on their way through one stream, against a write the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from torchft_x.rpc.transport import loop
from torchft_x.rpc.transport.streams.outbox import Outbox, StartedWrite


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
async def test_what_finds_the_way_free_has_left_before_put_returns_and_the_rest_follows_in_order() -> None:
    wire = Wire()
    outbox, sender = await started(wire)
    wire.free.clear()
    outbox.put(b"one")
    assert wire.begun == [b"one"]
    outbox.put(b"two")
    outbox.put(b"three")
    assert wire.begun == [b"one"]
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
    await asyncio.sleep(0)
    sender.cancel()
    await asyncio.wait({sender})
    assert wire.cancelled == [b"one"]


@on_loop
async def test_what_is_dropped_is_never_sent() -> None:
    wire = Wire()
    wire.free.clear()
    outbox, sender = await started(wire)
    for data in (b"one", b"two"):
        outbox.put(data)
    outbox.drop()
    assert len(outbox) == 0
    outbox.end()
    await sender
    assert (wire.begun, wire.done) == ([b"one"], [])


@on_loop
async def test_a_coroutine_that_needs_no_wait_is_done_when_it_has_begun() -> None:
    seen: list[int] = []

    async def quick() -> None:
        seen.append(1)

    begun = StartedWrite(quick())
    assert seen == [1]
    await begun
