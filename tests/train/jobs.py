"""Whole jobs: a real lighthouse, real gloo on loopback, groups as threads of one process, or as processes to be killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.train.forked import Program
from tests.util import clock, scaled, wait_for
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.rpc.coordination import LighthouseServer
from torchft_x.train.ddp.wrapper import DistributedDataParallel
from torchft_x.train.manager import Manager
from torchft_x.train.optim import OptimizerWrapper

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[2]
rng = threading.Lock()  # threads share torch's generator


@contextlib.contextmanager
def lighthouse(min_replicas: int = 1, heartbeat_timeout_ms: int = int(clock(5000))) -> Iterator[str]:
    """Groups that are here but have not asked are waited for: else whose thread is late is not in the quorum."""
    server = LighthouseServer(f"{HOST}:0", min_replicas, int(clock(5000)), heartbeat_timeout_ms=heartbeat_timeout_ms)
    try:
        yield server.address()
    finally:
        server.shutdown()


def model(seed: int = 0) -> nn.Module:
    with rng:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def batch(group: int, step: int) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1000 * group + step))


def loss_of(net: nn.Module, group: int, step: int) -> torch.Tensor:
    return net(batch(group, step)).square().mean()


class Trainer:
    """One life of a group: model, optimizer and Manager as a script would make them.

    Its weights start from a seed of its own, so equal weights come from the protocol or not at all.
    """

    def __init__(
        self, group: int, lighthouse_addr: str, *, seed: int | None = None, net: nn.Module | None = None, **kwargs: Any
    ) -> None:
        self.group = group
        self.net = net or model(group if seed is None else seed)
        self.optim = torch.optim.AdamW(self.net.parameters(), lr=0.05)
        kwargs.setdefault("min_replica_size", 1)
        kwargs.setdefault("timeout", scaled(20.0))
        kwargs.setdefault("quorum_timeout", scaled(20.0))
        kwargs.setdefault("straggler_timeout", scaled(20.0))  # these tests hold threads up; see test_stragglers
        kwargs.setdefault("rehearse", False)  # a step more before a newcomer heals; see test_newcomers
        self.pg = ProcessGroupGloo(kwargs.pop("pg_timeout", scaled(20.0)), host=HOST)
        self.manager = Manager(
            pg=self.pg,
            load_state_dict=self.load,
            state_dict=self.save,
            lighthouse_addr=lighthouse_addr,
            replica_id=f"group_{group}",
            store_addr=HOST,
            **{"hostname": HOST, "rank": 0, "world_size": 1, "store_port": 0, "connect_timeout": scaled(10), **kwargs},
        )
        self.model = DistributedDataParallel(self.manager, self.net)
        self.optimizer = OptimizerWrapper(self.manager, self.optim)
        self.history: dict[int, dict[str, torch.Tensor]] = {}  # parameters after each committed step

    def save(self) -> dict[str, Any]:
        return {"model": self.net.state_dict(), "optim": self.optim.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["model"])
        self.optim.load_state_dict(state["optim"])

    def step(self, hook: Callable[[], None] | None = None) -> bool:
        self.optimizer.zero_grad()
        loss = loss_of(self.model, self.group, self.manager.current_step())
        if hook is not None:
            hook()
        loss.backward()
        self.optimizer.step()
        if self.optimizer.committed:
            self.history[self.manager.current_step()] = {k: v.clone() for k, v in self.net.state_dict().items()}
        return bool(self.optimizer.committed)

    def run_to(self, step: int) -> Trainer:
        while self.manager.current_step() < step:
            self.step()
        return self


def reference(groups: int, steps: int, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Parameters after each step of one process that sees every group's batch."""
    net = model(seed)
    optim = torch.optim.AdamW(net.parameters(), lr=0.05)
    out = []
    for step in range(steps):
        optim.zero_grad()
        for g in range(groups):
            (loss_of(net, g, step) / groups).backward()
        optim.step()
        out.append({k: v.clone() for k, v in net.state_dict().items()})
    return out


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[k], b[k]) for k in a)


class Gate:
    """Lets a thread run up to a point and wait there."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.open.wait(scaled(30))


class Group:
    """A group's processes over its lives; all write to one file. For use by `killed_and_back`."""

    def __init__(self, number: int, address: str, folder: Path, module: str = "tests.train.worker", *more: str) -> None:
        self.path = folder / f"group{number}.txt"
        self.path.touch()
        stop = str(folder / "stop")
        self._module = module
        self._args = [str(number), address, str(self.path), stop, *more]
        self._log = folder / f"group{number}.log"
        self.start()

    def start(self) -> None:
        self.process = Program(self._module, self._args, self._log, os.environ)

    def kill(self) -> float:
        """Returns when (monotonic seconds)."""
        now = time.monotonic()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        return now

    def lines(self, kind: str = "commit") -> list[tuple[int, str, float]]:
        """(step, digest, when) of whole lines."""
        found = []
        for line in self.path.read_text().split("\n")[:-1]:
            what, step, digest, when = line.split()
            if what == kind:
                found.append((int(step), digest, float(when)))
        return found

    def last_step(self) -> int:
        return max((step for step, _, _ in self.lines()), default=0)

    def digests(self) -> dict[int, set[str]]:
        """By step, over all lives."""
        found: dict[int, set[str]] = {}
        for step, digest, _ in self.lines():
            found.setdefault(step, set()).add(digest)
        return found


def killed_and_back(
    groups: list[Group], folder: Path, rng: random.Random, *, kills: int, together: int, within: float, more: int
) -> tuple[list[float], int, dict[int, set[str]]]:
    """SIGKILL for a random group, and its next life, again and again; then all come to their end.

    Args:
        kills: how often; `together` steps of all groups before each, and of the last victim behind it.
        within: seconds behind those in which the kill comes.
        more: steps that all make at the end.

    Returns the seconds until the next step of each survivor of each kill, the last step, and all digests by step.
    """
    waits = []
    try:
        for _ in range(kills):
            goal = max(g.last_step() for g in groups) + together
            wait_for(lambda: all(g.last_step() >= goal for g in groups), 60, "all groups to train together")  # noqa: B023
            time.sleep(rng.random() * within)
            victim = rng.choice(groups)
            when = victim.kill()
            for g in groups:
                if g is not victim:
                    after = wait_for(
                        lambda: [t for _, _, t in g.lines() if t > when + 0.002],  # noqa: B023
                        30,
                        "a survivor's next step",
                    )
                    waits.append(after[0] - when)
            victim.start()
        back = victim.last_step()
        wait_for(lambda: victim.last_step() > back + together, 60, "the last one killed to be back")
        last = max(g.last_step() for g in groups) + more
        (folder / "new").write_text(str(last))
        (folder / "new").rename(folder / "stop")
        wait_for(lambda: all(g.process.poll() is not None for g in groups), 60, "the end of the run")
        assert [g.process.returncode for g in groups] == [0] * len(groups)
    finally:
        for g in groups:
            if g.process.poll() is None:
                g.kill()
    found: dict[int, set[str]] = {}
    for g in groups:
        for step, digests in g.digests().items():
            found.setdefault(step, set()).update(digests)
    return waits, last, found
