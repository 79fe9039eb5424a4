"""Compiled models under both wrappers: given compiled, compiled in place, and the wrapper compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.torch.train.fakes import FakeManager, gloo_groups
from tests.torch.train.jobs import Trainer
from torchft_x.core.fingerprint import Fingerprint, difference
from torchft_x.errors import ConfigError
from torchft_x.train.ddp.hsdp import HybridShardedDataParallel
from torchft_x.train.ddp.sharded_state import ShardedState
from torchft_x.train.ddp.shards import local, local_grad
from torchft_x.train.ddp.wrapper import DistributedDataParallel

QUORUMS = [(1, False), (3, False), (2, True), (4, False), (1, False)]  # of each step: participants, known late


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 9), nn.Linear(9, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).tanh())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x)).square().mean()


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What is compiled belongs to one test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def given(manager: Any, net: nn.Module, **how: Any) -> nn.Module:
    return DistributedDataParallel(manager, torch.compile(net, **how), bucket_cap_mb=0.0001)  # type: ignore[arg-type]


def in_place(manager: Any, net: nn.Module, **how: Any) -> nn.Module:
    net.compile(**how)
    return DistributedDataParallel(manager, net, bucket_cap_mb=0.0001)


def around(manager: Any, net: nn.Module, **how: Any) -> nn.Module:
    wrapper = DistributedDataParallel(manager, net, bucket_cap_mb=0.0001)
    return torch.compile(wrapper, **how)  # type: ignore[return-value]


def train(manager: FakeManager, model: nn.Module, net: nn.Module, heal: Callable[[], Any]) -> None:
    """Through quorums of several sizes, with a heal to the first weights in between, beside an eager model.

    `net`: what `model` wraps. `heal`: gives it its first weights.
    """
    eager = Net()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (net, eager)]
    first = copy.deepcopy(eager.state_dict())
    for step, (manager.participants, manager.late) in enumerate(QUORUMS):
        if step == 3:
            heal()
            eager.load_state_dict(first)
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        for m in (model, eager):
            m(x).backward()
        for (name, p), q in zip(net.named_parameters(), eager.parameters(), strict=True):
            assert q.grad is not None
            q.grad /= manager.participants
            torch.testing.assert_close(local_grad(p), q.grad, msg=f"step {step}, {name}")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert not manager.errors
    for p, q in zip(net.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(local(p), q.detach())


@pytest.mark.parametrize("way", [given, in_place, around])
def test_it_is_compiled_once_and_whole_whatever_becomes_of_the_quorum(way: Any) -> None:
    net, manager = Net(), FakeManager(gloo_groups(1)[0], 1)
    compiler = CompileCounterWithBackend("aot_eager")
    model = way(manager, net, backend=compiler, fullgraph=True)  # a break of the graph is an error
    first = copy.deepcopy(net.state_dict())
    train(manager, model, net, lambda: net.load_state_dict(first))
    assert compiler.frame_count == 1


def test_accumulation_compiles_nothing_more() -> None:
    net, manager = Net(), FakeManager(gloo_groups(1)[0], 2)
    compiler = CompileCounterWithBackend("aot_eager")
    model: Any = around(manager, net, backend=compiler, fullgraph=True)
    eager, x = Net(), torch.ones(4, 6)
    for _ in range(3):
        with model.no_sync():
            model(x).backward()
        model(x).backward()
        for _ in range(2):
            eager(x).backward()
        for p, q in zip(net.parameters(), eager.parameters(), strict=True):
            assert q.grad is not None
            torch.testing.assert_close(p.grad, q.grad / 2)
            p.grad = q.grad = None
    assert compiler.frame_count == 1


def test_blocks_of_a_sharded_model_are_compiled_once() -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        net, manager = Net(), FakeManager(gloo_groups(1)[0], 1)
        compiler = CompileCounterWithBackend("aot_eager")
        mesh = init_device_mesh("cpu", (1,))
        for block in net.blocks:
            block.compile(backend=compiler)
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
        state = ShardedState(net)
        model = HybridShardedDataParallel(manager, net, bucket_cap_mb=0.0001)  # type: ignore[arg-type]
        assert not any("_orig_mod" in name for name in state.state_dict()["model"])
        first = copy.deepcopy(state.state_dict())
        compiled = []  # frames, before the heal

        def heal() -> None:
            compiled.append(compiler.frame_count)
            state.load_state_dict(first)

        train(manager, model, net, heal)
        assert compiled == [compiler.frame_count]
        assert compiler.frame_count > 0
    finally:
        dist.destroy_process_group()


def declared(net: nn.Module) -> Fingerprint:
    manager = FakeManager(gloo_groups(1)[0], 1)
    DistributedDataParallel(manager, net)  # type: ignore[arg-type]
    return Fingerprint(tuple(manager.declared.values()))


def test_beside_a_group_that_does_not_compile() -> None:
    """torch.compile(model) renames parameters and the keys of a state dict: such groups don't train together."""
    plain, renamed = declared(Net()), declared(torch.compile(Net()))  # type: ignore[arg-type]
    found = difference(renamed, plain)
    assert found is not None
    assert found.is_compiling()
    assert "_orig_mod.blocks.0.up.weight" in found.clause("group 0's")
    net = Net()
    net.compile()
    assert difference(declared(net), plain) is None


def test_a_whole_step_that_is_compiled_is_refused_with_a_sentence(address: str) -> None:
    """Dynamo would go through the Manager's own code: no step would ever be committed."""
    trainer = Trainer(0, address)
    try:
        with pytest.raises(ConfigError, match=r"given to torch.compile, .*; compile the model \(model.compile\(\)\)"):
            torch.compile(trainer.step, backend="eager")()
        assert trainer.step()
    finally:
        trainer.manager.shutdown()
