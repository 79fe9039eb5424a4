"""One background asyncio loop per process, on a daemon thread, for every server and stream of `rpc`.

grpc.aio polls for the whole process through the first loop that uses it, so all its objects must live on one loop. Only
this loop's thread touches the machines of `core`, so they need no lock (the group's machine has one: `GroupShell`).
Blocking calls (`call`) are for other threads; on the loop's own thread they would wait for themselves.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from torchft_x.errors import DeadlineError

log = logging.getLogger(__name__)
T = TypeVar("T")

_lock = threading.Lock()  # guards _loop and _thread
_loop: asyncio.AbstractEventLoop | None = None  # made on first use
_thread: threading.Thread | None = None  # the thread that runs it
_inherited: list[asyncio.AbstractEventLoop] = []  # in a forked child: its parent's


def get_loop() -> asyncio.AbstractEventLoop:
    """Return the process's loop, and start it on first use."""
    global _loop, _thread
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            _loop.set_exception_handler(_unhandled)
            _thread = threading.Thread(target=_run, args=(_loop,), name="torchft_x-rpc", daemon=True)
            _thread.start()
        return _loop


def on_loop_thread() -> bool:
    return threading.current_thread() is _thread


def submit(coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Start `coro` on the loop."""
    return asyncio.run_coroutine_threadsafe(coro, get_loop())


def post(function: Callable[..., object], *args: object) -> None:
    """Run a plain function on the loop soon."""
    get_loop().call_soon_threadsafe(function, *args)


def call(coro: Coroutine[Any, Any, T], timeout: float, what: str = "the call") -> T:
    """Run `coro` on the loop and wait for its result. Raises `DeadlineError` after `timeout` seconds."""
    if on_loop_thread():
        coro.close()
        raise RuntimeError(f"{what}: a blocking call on the rpc loop's own thread would wait for itself")
    future = submit(coro)
    concurrent.futures.wait([future], timeout)
    if not future.done():
        future.cancel()
        raise DeadlineError(f"{what} was not done within {timeout:g} s.")
    return future.result()


class Notifier:
    """Daemon thread for work that must block neither the loop nor the training: aborts of collectives, quorums.

    It starts with the first callback. It runs callbacks in order, logs the exception of one, and runs the next.
    """

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()  # None ends the thread
        self._thread = threading.Thread(target=self._run, name=f"torchft_x-{name}", daemon=True)

    def post(self, callback: Callable[[], None]) -> None:
        """Run `callback` after those that were posted before. Call it on one thread only."""
        self._queue.put(callback)
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """End the thread after the callbacks that were posted before."""
        self._queue.put(None)

    def _run(self) -> None:
        while (callback := self._queue.get()) is not None:
            try:
                callback()
            except Exception:
                log.exception("a callback of %s failed", self._thread.name)


def _unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an unhandled exception, unless it comes from a message to a caller that died meanwhile.

    gRPC never awaits that future, and the end of the stream reports the death."""
    if type(context.get("exception")).__name__ != "ExecuteBatchError":
        loop.default_exception_handler(context)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _after_fork_in_child() -> None:
    """Forget the parent's loop in a forked child (a DataLoader's worker), which has no thread to run it.

    The next use starts a new loop. The child must not destroy the parent's gRPC objects. gRPC's threads are gone in the
    child, and its destructors would abort the process at a mutex that one of them held. So reachable objects stay
    reachable, and garbage is never collected.
    """
    global _lock, _loop, _thread
    if _loop is not None:
        _inherited.append(_loop)
        gc.freeze()
    _lock = threading.Lock()
    _loop = None
    _thread = None


os.register_at_fork(after_in_child=_after_fork_in_child)
