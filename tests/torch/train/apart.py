"""Groups that train apart (LocalSGD, DiLoCo): as threads, and as a reference computed by one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from tests.torch.train.jobs import HOST, batch, manager_of, model
from tests.util import scaled
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.train.ddp.shards import local
from torchft_x.train.local.diloco import DiLoCo
from torchft_x.train.local.local_sgd import LocalSGD
from torchft_x.train.manager import Manager

LR, MOMENTUM = 0.7, 0.9  # settings of the outer optimizer, which uses Nesterov's momentum
Weights = list[torch.Tensor]


def loss_of(net: nn.Module, group: int, inner: int) -> torch.Tensor:
    return (net(batch(group, inner)) - group).square().mean()


class LocalTrainer:
    """One attempt of a group. Its initial weights depend on a seed of its own."""

    def __init__(
        self, group: int, lighthouse: str, *, algorithm: str = "diloco", sync_every: int = 4, fragments: int = 1,
        outers: int = 1, seed: int | None = None, net: nn.Module | None = None, manager: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        self.group = group
        self.net = net or model(group if seed is None else seed)
        self.inner = torch.optim.AdamW(self.net.parameters(), lr=0.02)
        self.pg = ProcessGroupGloo(scaled(20.0), host=HOST)
        options = {"use_async_quorum": False, **(manager or {})}
        self.manager = manager_of(group, lighthouse, self.pg, self.load, self.save, kind=Manager, **options)
        kwargs.setdefault("quorum_timeout", scaled(20.0))
        self.loop: DiLoCo
        if algorithm == "local_sgd":
            self.loop = LocalSGD(self.manager, self.net, self.inner, sync_every, **kwargs)
        else:
            parts = [self.net] if fragments == 1 else [self.net.get_submodule(layer) for layer in "02"]
            some = [torch.optim.SGD(m.parameters(), lr=LR, momentum=MOMENTUM, nesterov=True) for m in parts]
            one = torch.optim.SGD(self.net.parameters(), lr=LR, momentum=MOMENTUM, nesterov=True)
            self.loop = DiLoCo(self.manager, parts, self.inner, some if outers > 1 else one, sync_every, **kwargs)
        self.steps = 0  # number of inner steps of this attempt
        self.history: dict[int, Weights] = {}  # exchange -> common state of the groups after it

    def save(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])

    def loss(self) -> torch.Tensor:
        """Return the loss of the n-th step of this attempt, on the group's n-th batch."""
        return loss_of(self.net, self.group, self.steps)

    def step(self, hook: Callable[[], None] | None = None) -> None:
        self.inner.zero_grad()
        self.loss().backward()
        if hook is not None:
            hook()
        before = self.loop.exchanges
        self.inner.step()
        self.steps += 1
        if self.loop.exchanges != before:
            self.note()

    def note(self) -> None:
        self.history[self.loop.exchanges] = self.common()

    def common(self) -> Weights:
        return [t.clone() for fragment in self.loop.global_parameters for t in fragment.values()]

    def weights(self) -> Weights:
        return [local(p).clone() for p in self.net.parameters()]

    def run(self, steps: int) -> LocalTrainer:
        with self.loop:
            for _ in range(steps):
                self.step()
        return self

    def run_to(self, exchanges: int, hook: Callable[[], None] | None = None) -> LocalTrainer:
        with self.loop:
            if self.loop.exchanges and self.loop.exchanges not in self.history:
                self.note()
            while self.loop.exchanges < exchanges:
                self.step(hook)
        return self


def reference(
    groups: int, steps: int, *, sync_every: int, fragments: int = 1, delay: int = 0, alpha: float = 0.0,
    algorithm: str = "diloco", weights: Sequence[float] | None = None,
    make: Callable[[int], nn.Module] = model, loss: Callable[[nn.Module, int, int], torch.Tensor] = loss_of,
) -> tuple[list[Weights], list[Weights]]:  # fmt: skip
    """Return the common weights after each exchange, and the final weights of each group, after `steps` inner steps.

    It is written from the papers, without torchft_x: DiLoCo's algorithm 1, Streaming DiLoCo's algorithm 2, and the
    outer optimizer by hand.
    """
    share = [w / sum(weights) for w in weights] if weights else [1.0 / groups] * groups
    nets = [make(0) for _ in range(groups)]
    inner = [torch.optim.AdamW(n.parameters(), lr=0.02) for n in nets]
    own = [[p.data for p in n.parameters()] for n in nets]
    common = [t.clone() for t in own[0]]
    momentum: dict[int, torch.Tensor] = {}
    half = len(common) // 2
    pieces = [range(len(common))] if fragments == 1 else [range(half), range(half, len(common))]
    period = sync_every // fragments
    history: list[Weights] = []
    average: dict[int, torch.Tensor] = {}
    for t in range(1, steps + 1):
        for g in range(groups):
            inner[g].zero_grad()
            loss(nets[g], g, t - 1).backward()
            inner[g].step()
        piece = pieces[len(history) % fragments]
        if t % period == (period - delay) % period:
            for i in piece:
                values = [own[g][i] if algorithm == "local_sgd" else common[i] - own[g][i] for g in range(groups)]
                average[i] = sum(v * s for v, s in zip(values, share, strict=True))  # type: ignore[assignment]
        if t % period:
            continue
        for i in piece:
            if algorithm == "local_sgd":
                common[i] = average[i].clone()
            else:
                momentum[i] = average[i].clone() if i not in momentum else MOMENTUM * momentum[i] + average[i]
                common[i] = common[i] - LR * (average[i] + MOMENTUM * momentum[i])
            for g in range(groups):
                own[g][i].copy_(common[i] + alpha * (own[g][i] - common[i]))
        history.append([c.clone() for c in common])
    return history, own


def equal(a: Weights, b: Weights) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def near(found: Weights, want: Weights) -> None:
    for x, y in zip(found, want, strict=True):
        torch.testing.assert_close(x, y, atol=2e-6, rtol=1e-4)
