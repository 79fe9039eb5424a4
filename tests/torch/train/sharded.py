"""A sharded model and its training on one rank, for tests. The module `ranks` starts the processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
import torch._dynamo  # imported once for all forks, as the first optimizer of a process imports it
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.torch.train.ranks import RankSpec
from torchft_x.train.ddp.hsdp import HybridShardedDataParallel
from torchft_x.train.ddp.sharded_state import ShardedState
from torchft_x.train.ddp.shards import local
from torchft_x.train.optim import OptimizerWrapper
from torchft_x.transfer.format.flatten import is_dtensor

WIDTH = 6
Tensors = dict[str, torch.Tensor]


class Net(nn.Module):
    """Model with uneven blocks, and two parts that only some batches use.

    The blocks' sizes don't divide by two, so that rank 1 has less, or nothing, of some.
    """

    def __init__(self, frozen: bool = False, inner: int = 7) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, inner), nn.ReLU(), nn.Linear(inner, WIDTH)) for _ in range(2)
        )
        self.sometimes = nn.Sequential(nn.Linear(WIDTH, WIDTH))
        self.never = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 1)
        self.register_buffer("seen", torch.zeros(()))
        if frozen:
            self.blocks[0].requires_grad_(False)

    def forward(self, x: torch.Tensor, extra: bool = False) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        if extra:
            x = x + self.sometimes(x)
        return self.head(x)


def model(seed: int, frozen: bool = False, inner: int = 7) -> Net:
    torch.manual_seed(seed)
    return Net(frozen, inner)


def batch(group: int, rank: int, step: int, micro: int = 0) -> torch.Tensor:
    seed = ((group * 10 + rank) * 1000 + step) * 10 + micro
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed))


def loss_of(net: nn.Module, x: torch.Tensor, extra: bool = False) -> torch.Tensor:
    return (net(x, extra) - 1).square().mean()


def shard(net: Net, mesh: Any = None, **kwargs: Any) -> Net:
    kwargs.update({"mesh": mesh} if mesh is not None else {})
    for block in [*net.blocks, net.sometimes]:
        fully_shard(block, **kwargs)
    fully_shard(net, **kwargs)
    return net


class Trainer:
    def __init__(
        self, spec: RankSpec, *, net: Net | None = None, seed: int = 0, cut: Callable[[Net], Any] = shard,
        bucket_cap_mb: float | None = None, clip: float = 0.0, **kwargs: Any,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.clip = clip
        self.net = net or model(seed)
        cut(self.net)
        self.adamw = torch.optim.AdamW(self.net.parameters(), lr=0.05)
        self.state = ShardedState(self.net, self.adamw)
        self.manager = spec.manager(self.state.load_state_dict, self.state.state_dict, **kwargs)
        self.model = HybridShardedDataParallel(self.manager, self.net, bucket_cap_mb=bucket_cap_mb)
        self.optimizer = OptimizerWrapper(self.manager, self.adamw)
        self.history: dict[int, Tensors] = {}  # this rank's shards after each committed step
        self.attempts = 0  # number of steps computed

    def backward(self, step: int) -> None:
        loss_of(self.model, batch(self.spec.group, self.spec.rank, step)).backward()

    def step(self, backward: Callable[[int], None] | None = None) -> bool:
        self.optimizer.zero_grad()
        self.attempts += 1
        (backward or self.backward)(self.manager.current_step())
        if self.clip:
            nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
        self.optimizer.step()
        if self.optimizer.committed:
            self.history[self.manager.current_step()] = self.shards()
            if self.spec.steps is not None:
                self.spec.steps.value = self.manager.current_step()
        return bool(self.optimizer.committed)

    def whole(self) -> Tensors:
        """Return the parameters, assembled by the ranks of the group, which all call this."""
        with torch.no_grad():
            return {n: (p.full_tensor() if is_dtensor(p) else p).clone() for n, p in self.net.named_parameters()}

    def shards(self) -> Tensors:
        """Return this rank's parameters, and the optimizer's state as "NAME/KEY"."""
        found = {name: local(p).clone() for name, p in self.net.named_parameters()}
        for name, p in self.net.named_parameters():
            found |= {f"{name}/{key}": local(v).clone() for key, v in self.adamw.state.get(p, {}).items()}
        return found

    def run_to(self, step: int, backward: Callable[[int], None] | None = None) -> Trainer:
        while self.manager.current_step() < step:
            self.step(backward)
        return self

    def end(self) -> dict[int, Tensors]:
        self.manager.shutdown()
        return self.history


def full(by_rank: list[Tensors], like: nn.Module) -> Tensors:
    """Return the whole parameters from the shards of FSDP's default placement."""
    return {
        name: torch.cat([shards[name] for shards in by_rank if shards[name].numel()]).view(p.shape)
        for name, p in like.named_parameters()
        if name in by_rank[0]
    }


def assert_near(found: Tensors, want: Tensors, where: object) -> None:
    for name, value in found.items():
        worst = (value - want[name]).abs().max().item()
        assert torch.allclose(value, want[name], atol=2e-5, rtol=1e-4), f"{where}: {name} is off by {worst}"


def assert_same(found: Sequence[Sequence[dict[int, Tensors]]]) -> None:
    """Check that rank r of every group has the same bits after each step."""
    for other, (rank, history) in product(found[1:], enumerate(found[0])):
        for step, shards in history.items():
            assert all(torch.equal(value, other[rank][step][name]) for name, value in shards.items()), (step, rank)


def reference(
    groups: int | Sequence[Sequence[int]], ranks: int, steps: int = 0, *, seed: int = 0, micro: int = 1,
    frozen: bool = False, inner: int = 7, clip: float = 0.0, extra: Callable[[int, int, int], bool] = lambda group, rank, step: False,
) -> list[Tensors]:  # fmt: skip
    """Return the parameters after each step of one process that computes every rank's batches.

    `groups`: number of groups, or the groups that take part in each step.
    """
    net = model(seed, frozen, inner)
    optim = torch.optim.AdamW(net.parameters(), lr=0.05)
    out = []
    for step, part in enumerate([range(groups)] * steps if isinstance(groups, int) else groups):
        optim.zero_grad()
        for g, r, m in product(part, range(ranks), range(micro)):
            (loss_of(net, batch(g, r, step, m), extra(g, r, step)) / (len(part) * ranks * micro)).backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optim.step()
        out.append({name: p.detach().clone() for name, p in net.named_parameters()})
    return out
