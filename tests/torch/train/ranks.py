"""Ranks of groups as real processes, for FSDP2.

FSDP2 needs a process group per group, and torch has one default group per process.

One forkserver imports torch once; each rank is a fork of it. The lighthouse runs in the test's process.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from tests.torch.train.forked import forkserver
from tests.torch.train.jobs import HOST, manager_of
from tests.util import scaled, wait_for
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.train.manager import Manager


@dataclass(frozen=True)
class RankSpec:
    group: int
    rank: int
    ranks: int
    lighthouse: str
    port: int  # port of the group's store
    steps: Any = None  # shared counter of rank 0's committed steps
    kwargs: dict[str, Any] = field(default_factory=dict)  # arguments for the body

    def manager(self, load: Any = None, save: Any = None, **kwargs: Any) -> Manager:
        where = {"rank": self.rank, "world_size": self.ranks, "store_port": self.port}
        pg = kwargs.pop("pg", None) or ProcessGroupGloo(scaled(20.0), host=HOST)
        return manager_of(self.group, self.lighthouse, pg, load, save, **{**where, **kwargs})


Body = Callable[[RankSpec], Any]


def _enter(pipe: Connection, body: Body, spec: RankSpec) -> None:
    faulthandler.dump_traceback_later(scaled(50), exit=True)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"
    try:
        store = dist.TCPStore(HOST, spec.port, None, False, timedelta(seconds=scaled(20)))
        dist.init_process_group("gloo", store=dist.PrefixStore("default", store), rank=spec.rank, world_size=spec.ranks)
        # `send` is unsuitable: torch would pass shared memory that ends with this process.
        pipe.send_bytes(pickle.dumps(("ok", body(spec))))
        dist.destroy_process_group()
    except BaseException:
        pipe.send_bytes(pickle.dumps(("failed", traceback.format_exc())))
        raise
    finally:
        pipe.close()


class Group:
    """One attempt of a group. Its `store` is closed with this object."""

    def __init__(self, number: int, lighthouse: str, body: Body, ranks: int, kwargs: dict[str, Any]) -> None:
        self.store = dist.TCPStore(HOST, 0, None, True, timedelta(seconds=20), wait_for_workers=False)
        self.number = number
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        self.steps = forkserver().Value("i", 0)  # newest step committed by any rank
        for rank in range(ranks):
            mine, theirs = multiprocessing.Pipe(duplex=False)
            spec = RankSpec(number, rank, ranks, lighthouse, self.store.port, self.steps, kwargs)
            process = forkserver().Process(target=_enter, args=(theirs, body, spec), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)

    def results(self) -> list[Any]:
        """Return the results of the body, by rank. Raise `AssertionError` with the traceback of a rank that failed."""
        deadline = time.monotonic() + scaled(40.0)
        found = []
        for rank, pipe in enumerate(self.pipes):
            who = f"group {self.number} rank {rank}"
            assert pipe.poll(max(0.0, deadline - time.monotonic())), f"{who} has no result"
            try:
                kind, value = pickle.loads(pipe.recv_bytes())
            except EOFError:
                raise AssertionError(f"{who} died ({self.processes[rank].exitcode})") from None
            assert kind == "ok", f"{who}:\n{value}"
            found.append(value)
        return found

    def wait_step(self, step: int) -> None:
        wait_for(lambda: self.steps.value >= step, 20.0, f"group {self.number} to commit step {step}")

    def wait_dead(self, rank: int) -> None:
        self.processes[rank].join(scaled(20.0))
        assert not self.processes[rank].is_alive()

    def kill(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process in self.processes:
            process.join(10)


class Groups(ExitStack):
    """Starter of groups, as a context manager that kills their remaining processes."""

    def __init__(self, lighthouse: str, ranks: int = 2) -> None:
        super().__init__()
        self.lighthouse = lighthouse
        self.ranks = ranks

    def start(self, number: int, body: Body, ranks: int = 0, **kwargs: Any) -> Group:
        """Start a group. `ranks`: its size, if it differs from that of the others."""
        group = Group(number, self.lighthouse, body, ranks or self.ranks, kwargs)
        self.callback(group.kill)
        return group

    def run(self, count: int, body: Body, **kwargs: Any) -> list[list[Any]]:
        groups = [self.start(n, body, **kwargs) for n in range(count)]
        return [g.results() for g in groups]
