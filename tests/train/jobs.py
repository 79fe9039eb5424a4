"""Whole jobs in one process: a real lighthouse, groups as threads, real gloo on loopback."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from tests.util import scaled
from torchft_x.comm.gloo import ProcessGroupGloo
from torchft_x.rpc.coordination import LighthouseServer
from torchft_x.train.ddp import DistributedDataParallel
from torchft_x.train.manager import Manager
from torchft_x.train.optim import OptimizerWrapper

HOST = "127.0.0.1"
rng = threading.Lock()  # threads share torch's generator


@contextlib.contextmanager
def lighthouse(min_replicas: int = 1, heartbeat_timeout_ms: int = 5000) -> Iterator[str]:
    """Groups that are here but have not asked are waited for: else whose thread is late is not in the quorum."""
    server = LighthouseServer(f"{HOST}:0", min_replicas, int(scaled(5000)), heartbeat_timeout_ms=heartbeat_timeout_ms)
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
        self.pg = ProcessGroupGloo(scaled(20.0), host=HOST)
        self.manager = Manager(
            pg=self.pg,
            load_state_dict=self.load,
            state_dict=self.save,
            lighthouse_addr=lighthouse_addr,
            replica_id=f"group_{group}",
            hostname=HOST,
            store_addr=HOST,
            **{"rank": 0, "world_size": 1, "store_port": 0, "connect_timeout": scaled(10), **kwargs},
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
