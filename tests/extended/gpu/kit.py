"""Helpers for the checks of `./scripts/gpu_check`, and the failures that they raise."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.torch.comm.members import configure
from torchft_x.comm import ProcessGroupGloo
from torchft_x.comm.base import ProcessGroup
from torchft_x.comm.store.create import host_store
from torchft_x.errors import CollectiveError

Figures = dict[str, Any]


@dataclass
class Kit:
    """Device, folder and measurements of a check. The same checks run on a card and, as far as possible, on the CPU."""

    device: torch.device
    folder: Path
    """Private folder, empty at the beginning."""
    figures: Figures = field(default_factory=dict)
    """Measurements so far; kept if the check fails."""
    _store: dist.TCPStore | None = None
    _numbers: Any = field(default_factory=itertools.count)

    @property
    def on_cpu(self) -> bool:
        return self.device.type == "cpu"

    def tensor(self, *shape: int, seed: int = 0) -> torch.Tensor:
        """Return normally distributed numbers, equal on every device."""
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(self.device)

    @contextmanager
    def gloo_groups(self, size: int, limit: float = 60.0) -> Iterator[list[ProcessGroup]]:
        """Connect `size` members on this device."""
        groups: list[ProcessGroup] = [ProcessGroupGloo(limit, host="127.0.0.1") for _ in range(size)]
        try:
            configure(groups, self.meeting(), 1)
            yield groups
        finally:
            for group in groups:
                group.shutdown()

    def meeting(self) -> str:
        """Return an unused store address."""
        if self._store is None:
            self._store = host_store("127.0.0.1", 60.0)[0]
        return f"127.0.0.1:{self._store.port}/gpu_check/{next(self._numbers)}"

    def wait(self) -> None:
        """Wait until the device has finished its work."""
        if not self.on_cpu:
            torch.accelerator.synchronize()

    def seconds(self, action: Callable[[], object], times: int = 5) -> float:
        """Return the median time in seconds of several runs, after one that isn't counted."""
        took = []
        for _ in range(times + 1):
            self.wait()
            began = time.perf_counter()
            action()
            self.wait()
            took.append(time.perf_counter() - began)
        return statistics.median(took[1:])


def need(truth: object, sentence: str) -> None:
    """Fail the check unless `truth` holds; `assert` would vanish with python -O."""
    if not truth:
        raise AssertionError(sentence)


def need_failure(work: dist.Work, sentence: str) -> None:
    """Fail the check unless the collective fails."""
    try:
        work.wait()
    except CollectiveError:
        return
    raise AssertionError(sentence)


def need_equal(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    """Fail the check unless the tensors are equal bit for bit. They may be on different devices."""
    got, wanted = got.detach().cpu(), wanted.detach().cpu()
    if got.dtype != wanted.dtype or got.shape != wanted.shape:
        raise AssertionError(f"{what}: {got.dtype} {tuple(got.shape)} instead of {wanted.dtype} {tuple(wanted.shape)}")
    raw, right = got.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8)
    if not torch.equal(raw, right):
        off = (got.double() - wanted.double()).abs().max().item()
        raise AssertionError(f"{what}: {int((raw != right).sum())} bytes differ, by {off:g} at most")
