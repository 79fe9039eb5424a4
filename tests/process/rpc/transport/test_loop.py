"""One loop per process; blocking calls with a deadline; a fork starts afresh."""

from __future__ import annotations

import asyncio
import gc
import os

import pytest

from tests.unit.rpc.transport.test_loop import _thread
from tests.util import scaled
from torchft_x.rpc.transport import loop


def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    parent = loop.get_loop()
    pid = os.fork()
    if pid == 0:
        try:
            mine = loop.get_loop()
            ok = mine is not parent and loop.call(_thread(), scaled(5.0)) is not None
            os._exit(0 if ok else 1)
        except BaseException:
            os._exit(2)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert loop.get_loop() is parent


def test_a_forked_child_destroys_nothing_of_its_parents() -> None:
    """A destructor of gRPC's, in a process without gRPC's threads, ends it with SIGABRT."""
    loop.get_loop()
    destroyed: list[int] = []

    class Ring:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            destroyed.append(os.getpid())

    gc.disable()
    try:
        Ring()
        pid = os.fork()
        if pid == 0:
            gc.enable()
            gc.collect()
            os._exit(len(destroyed))
    finally:
        gc.enable()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    gc.collect()
    assert destroyed == [os.getpid()]


def test_a_message_to_a_caller_that_died_is_no_news_and_all_else_is(caplog: pytest.LogCaptureFixture) -> None:
    class ExecuteBatchError(Exception):
        """As gRPC calls it."""

    def leave(error: Exception) -> None:
        asyncio.get_running_loop().create_future().set_exception(error)

    async def both() -> None:
        leave(ExecuteBatchError())
        leave(KeyError("x"))
        gc.collect()

    loop.call(both(), scaled(5.0))
    assert [str(r.exc_info[1]) for r in caplog.records if r.exc_info] == ["'x'"]
