"""One loop per process; blocking calls with a deadline; a fork starts afresh."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.util import scaled, wait_for
from torchft_x.errors import DeadlineError
from torchft_x.rpc.transport import loop


async def _thread() -> threading.Thread:
    return threading.current_thread()


def test_every_call_runs_on_the_one_daemon_thread() -> None:
    first, second = (loop.call(_thread(), scaled(5.0)) for _ in range(2))
    assert first is second is not threading.current_thread()
    assert first.daemon
    seen: list[bool] = []
    loop.post(lambda: seen.append(loop.on_loop_thread()))
    wait_for(lambda: seen == [True])


def test_a_call_has_a_deadline_and_its_coroutine_ends() -> None:
    ended = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()

    with pytest.raises(DeadlineError, match=r"sleeping was not done within 0\.01 s"):
        loop.call(forever(), 0.01, "sleeping")
    assert ended.wait(scaled(5.0))


def test_an_exception_comes_back_as_itself() -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        loop.call(fail(), scaled(5.0))

    async def too_late() -> None:
        raise DeadlineError("own sentence.")

    with pytest.raises(DeadlineError, match="own sentence"):
        loop.call(too_late(), scaled(5.0))


def test_a_blocking_call_on_the_loop_is_refused() -> None:
    async def nested() -> None:
        loop.call(_thread(), 1.0)

    with pytest.raises(RuntimeError, match="wait for itself"):
        loop.call(nested(), scaled(5.0))
