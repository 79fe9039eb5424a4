"""A Manager without a lighthouse: real gloo between threads, and errors on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from tests.util import scaled
from torchft_x.core.fingerprint import Trait, describe
from torchft_x.train.context.committed import CommittedState
from torchft_x.train.ddp.gradient_steps import UNDEALT

T = TypeVar("T")


def background(body: Callable[[], T]) -> Future[T]:
    """Run `body` on a daemon thread. The future holds its result or exception."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(body())
        except BaseException as e:
            future.set_exception(e)

    threading.Thread(target=run, daemon=True).start()
    return future


def run_threads(n: int, body: Callable[[int], T], timeout: float = 60.0) -> list[T]:
    """Run `body(rank)` in n threads and return their results. Raise the first exception at once."""
    threads = [background(lambda rank=rank: body(rank)) for rank in range(n)]
    done, running = wait(threads, scaled(timeout), FIRST_EXCEPTION)
    for thread in done:
        thread.result()
    assert not running, f"threads still run after {scaled(timeout):g} s"
    return [thread.result() for thread in threads]


def gloo_groups(n: int) -> list[Any]:
    store = dist.HashStore()
    return run_threads(n, lambda r: dist.ProcessGroupGloo(store, r, n, timedelta(seconds=scaled(20))))


class FakeManager:
    """Stand-in for a Manager with the methods that the reducer needs, over one gloo group.

    Args:
        contributes: False: this rank sends zeros.
        participants: the divisor.
        late: the quorum is known only when allreduce waits for it.
        fail_at: numbers (from 0) of the allreduces that fail in wait().
        votes: the end of a pass waits for others, so that `meanwhile` is called.
    """

    def __init__(
        self, pg: Any, participants: int, *, contributes: bool = True, late: bool = False, fail_at: Sequence[int] = (),
        votes: bool = False,
    ) -> None:  # fmt: skip
        self.pg = pg
        self.context = SimpleNamespace(committed=CommittedState(compares=False))
        self.participants = participants
        self.contributes = contributes
        self.late = late
        self.fail_at = fail_at
        self.votes = votes
        self.sizes: list[int] = []
        self.errors: list[Exception] = []
        self.declared: dict[str, Trait] = {}  # traits, by name
        self.steps = self
        self.data = UNDEALT

    def declare(self, name: str, words: str, parts: Sequence[str] = (), digest: str = "") -> None:
        self.declared[name] = describe(name, words, parts, digest)

    def check_device(self, kind: str) -> None:
        pass

    def end_pass(self, kept: Any, works: int, good: bool, meanwhile: Callable[[], None]) -> bool:
        if self.votes:
            meanwhile()
        return True

    def reject_step(self, error: Exception) -> None:
        self.errors.append(error)

    def scale(self) -> float | None:
        if self.late:
            return None
        return 1.0 / self.participants if self.contributes else 0.0

    def reduce(self, tensor: torch.Tensor, op: Any) -> Any:
        return self.allreduce(tensor, reduce_op=op)

    def allreduce(self, tensor: torch.Tensor, should_quantize: bool = False, reduce_op: Any = dist.ReduceOp.AVG) -> Any:
        n = len(self.sizes)
        self.sizes.append(tensor.numel())
        if not self.contributes:
            tensor.zero_()
        elif reduce_op == dist.ReduceOp.AVG:
            tensor.mul_(1.0 / self.participants)
        if n in self.fail_at:
            tensor.fill_(float("nan"))  # gloo leaves a half-reduced buffer
            return _Failed()
        return self.pg.allreduce([tensor])


class _Failed:
    def wait(self) -> bool:
        return False
