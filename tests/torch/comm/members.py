"""Several members of one group: as threads of this process, or forked from a process that has imported torch."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from tests.torch.train.fakes import run_threads
from tests.util import scaled
from torchft_x.comm.accelerator.group import AcceleratorGroup
from torchft_x.comm.base import ProcessGroup, RankInfo

T = TypeVar("T")
G = TypeVar("G", bound=ProcessGroup)


class GlooFrame(AcceleratorGroup):
    """The frame with gloo on the CPU in place of the library. gloo's abort releases nobody; its timeout does."""

    _kind, _device, _backend_type = "frame", "cpu", "GLOO"

    def _require(self) -> None:
        pass

    def _backend(self, store: dist.Store, info: RankInfo, device: torch.device, names: dict[str, Any]) -> Any:
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=60)
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        return dist.ProcessGroupGloo(store, info.rank, info.size, options)

    def _current_device(self) -> torch.device:
        return torch.device("cpu")

    def _use(self, device: torch.device) -> None:
        pass

    def _synchronize(self) -> None:
        pass


@contextlib.contextmanager
def several(number: int, make: Callable[[], G]) -> Iterator[list[G]]:
    """Make some groups, and shut them down at the end."""
    groups = [make() for _ in range(number)]
    try:
        yield groups
    finally:
        for group in groups:
            group.shutdown()


def together(actions: Sequence[Callable[[], T]]) -> list[T]:
    """Run all actions at the same time. Return their results in order, or raise the first exception."""
    return run_threads(len(actions), lambda index: actions[index](), 30)


def configure(groups: Sequence[ProcessGroup], address: str, quorum_id: int | None = None) -> None:
    each(groups, lambda rank, group: group.configure(address, f"replica{rank}", rank, len(groups), quorum_id))


def each(groups: Sequence[ProcessGroup], action: Callable[[int, ProcessGroup], T]) -> list[T]:
    return run_threads(len(groups), lambda rank: action(rank, groups[rank]), 30)


class Nursery:
    """Members in processes of their own, each started in milliseconds by the program `member`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.torch.comm.member"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def member(self, kind: str, address: str, rank: int, size: int, config_id: int) -> int:
        """Start a process that configures itself as a member, and return its pid."""
        assert self._process.stdin is not None
        print(kind, address, rank, size, config_id, file=self._process.stdin, flush=True)
        return int(self.line())

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=scaled(10))
