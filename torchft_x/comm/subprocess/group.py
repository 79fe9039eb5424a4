"""Process groups in a child process, so that a communication library that dies or hangs can't affect the trainer.

Each `configure` starts a new child and kills the last one, so an abort is a kill: no state, thread or socket of the
library is left. This costs a copy of each CPU tensor into and out of shared memory
(`torchft_x.comm.subprocess.shared_memory`). CUDA tensors are shared without a copy.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work

from torchft_x import env, net
from torchft_x.comm.accelerator.group import lacking
from torchft_x.comm.accelerator.nccl import ProcessGroupNCCL, ProcessGroupXCCL
from torchft_x.comm.base import ProcessGroup, RankInfo
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.comm.rebuilt import EndedError, RebuiltGroup, SingleMember, end_when_forgotten
from torchft_x.comm.subprocess import fork_server
from torchft_x.comm.subprocess.child_handle import ChildHandle
from torchft_x.comm.subprocess.child_main import Child
from torchft_x.durations import seconds
from torchft_x.errors import CollectiveError, ConfigError, DeadlineError
from torchft_x.timing import COLD_IMPORT, TIMING


class ProcessGroupBaby(RebuiltGroup):
    """Common part of process groups in a child process. Use one of its subclasses.

    Args:
        timeout: the longest time (seconds or timedelta) that one `configure` and one collective may take. The first
            configure of a process may take longer, by the time that a helper process needs to import torch.
        host: as in `ProcessGroupGloo`.
    """

    _kind = ""  # name of the library
    _inner: Callable[..., ProcessGroup]  # class of the child's group
    _device = "cpu"  # kind of device that the group works on

    def __init__(self, timeout: float | timedelta = 60.0, *, host: str | None = None) -> None:
        super().__init__()
        if self._kind == "":
            raise ConfigError("ProcessGroupBaby is not a group by itself; use ProcessGroupBabyGloo or another of them.")
        if self._device != "cpu":
            lacking(self._kind, type(self).__name__)
        self._timeout = seconds(timeout)
        # Only gloo listens: on this address.
        self._options = {"host": net.advertise_host(host)} if self._device == "cpu" else {}
        self._lock = threading.Lock()  # serialises `configure`
        self._latest: list[ChildHandle | SingleMember] = []  # the present configuration, if there is one
        end_when_forgotten(self, functools.partial(_end_all, self._latest))  # must not keep its child running
        fork_server.warm_up()

    @property
    def takes(self) -> str | None:
        return None if self._device == "cpu" else self._device

    @property
    def _present(self) -> ChildHandle | SingleMember | None:
        return next(iter(self._latest), None)

    def _configure(self, info: RankInfo, store_addr: str, replica_id: str, *names: Any) -> None:
        """Connect new members, see `ProcessGroup.configure`. A group of one needs no child."""
        with self._lock:
            self._end_present(EndedError, "configured anew")
            if info.size == 1:
                self._latest[:] = [SingleMember(info)]
                return
            make = functools.partial(self._inner, self._timeout, **self._options)
            members = (store_addr, replica_id, *info)
            index = 0 if self._device == "cpu" else torch.get_device_module(self._device).current_device()
            child = ChildHandle(Child(make, members, self._device, index, env.flight_folder()), info, self._timeout)
            self._latest[:] = [child]
        limit = max(self._timeout, COLD_IMPORT)  # the helper of a process's first child imports torch
        if not child.started.wait(limit):
            child.end(DeadlineError(f"Configuring {child.info} failed: no child process was there in {limit:g} s."))
        elif not child.configured.wait(limit := self._timeout + TIMING.late_child):
            child.end(
                DeadlineError(f"Configuring {child.info} failed: its child process did not answer in {limit:g} s.")
            )
        if child.error is not None:
            raise copy.copy(child.error)

    def set_timeout(self, timeout: float | timedelta) -> None:
        super().set_timeout(timeout)
        present = self._present
        if isinstance(present, ChildHandle):
            present.set_timeout(self._timeout)

    def num_active_work(self) -> int:
        """Return the number of collectives whose end the child has not reported."""
        present = self._present
        return present.active if isinstance(present, ChildHandle) else 0

    def getBackendName(self) -> str:
        return f"torchft-baby-{self._kind}"

    def _start(self, present: ChildHandle | SingleMember, op: str, args: tuple[Any, ...]) -> Work:
        return present.issue(op, args) if isinstance(present, ChildHandle) else super()._start(present, op, args)


class ProcessGroupBabyGloo(ProcessGroupBaby):
    """Process group on gloo in a child process. Tensors on any device are copied through shared host memory."""

    _kind = "gloo"
    _inner = ProcessGroupGloo


class ProcessGroupBabyNCCL(ProcessGroupBaby):
    """Process group on NCCL in a child process, which shares the CUDA tensors of the current device.

    The child's own context takes about 1 GB of device memory. ``wait()`` blocks the calling thread, not only its
    stream, until the result is there. A stream that waits for an event of another process would wait for ever once
    that process is killed. Raises `ConfigError` without CUDA or NCCL.
    """

    _kind = "nccl"
    _inner = ProcessGroupNCCL
    _device = "cuda"


class ProcessGroupBabyXCCL(ProcessGroupBaby):
    """Process group on oneCCL in a child process, on XPU tensors, which are copied through host memory.

    Raises `ConfigError` without XPU or XCCL. Never run by us: we have no XPU.
    """

    _kind = "xccl"
    _inner = ProcessGroupXCCL
    _device = "xpu"


def _end_all(configurations: list[ChildHandle | SingleMember]) -> None:
    for each in configurations:
        each.end(CollectiveError("the group was forgotten"))
