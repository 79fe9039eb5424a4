"""Checks of training steps on a card: FSDP2 with and without offload, torch.compile, against plain training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy

from tests.extended.gpu.groups import library_group
from tests.extended.gpu.kit import Figures, Kit, need, need_equal
from tests.torch.train.jobs import HOST, lighthouse
from tests.torch.train.ranks import Groups, RankSpec
from tests.torch.train.sharded import Net, Trainer, assert_near, batch, loss_of, reference, shard
from torchft_x.train.ddp.shards import local, offloaded
from torchft_x.train.ddp.wrapper import DistributedDataParallel
from torchft_x.train.manager import Manager
from torchft_x.train.optim import OptimizerWrapper

STEPS = 4


def fsdp2_with_offload(kit: Kit) -> Figures:
    """Run `fsdp2` with shards, gradients and the optimizer's state on the host. On a CPU they are there anyway."""
    return fsdp2(kit, offload=not kit.on_cpu)


def fsdp2(kit: Kit, *, offload: bool = False) -> Figures:
    """Train two groups of one rank each, sharded and averaged over gloo.

    Check that the groups are equal, and near one process on the CPU.
    """
    with lighthouse(2) as address, Groups(address, 1) as groups:
        found = groups.run(2, fsdp2_rank, device=kit.device.type, offload=offload)
    first, second = (group[0] for group in found)
    # At step 0 all take the weights of one group, which the lighthouse chooses.
    either = [reference(2, 1, STEPS, seed=seed) for seed in (0, 1)]
    want = min(either, key=lambda steps: sum((first[1][n] - v).abs().sum().item() for n, v in steps[0].items()))
    for step in range(1, STEPS + 1):
        for name, t in first[step].items():
            need_equal(t, second[step][name], f"step {step}, {name}: the groups differ")
        assert_near({n: v for n, v in first[step].items() if n in want[step - 1]}, want[step - 1], step)
    kit.figures["steps"] = STEPS
    return kit.figures


def fsdp2_rank(spec: RankSpec) -> dict[int, dict[str, torch.Tensor]]:
    """Train one rank in a process of its own. Return its parameters after each step, on the CPU."""
    kind, offload = spec.kwargs["device"], spec.kwargs["offload"]

    def cut(net: Net) -> None:
        if kind == "cpu":
            shard(net)
            return
        torch.get_device_module(kind).set_device(0)
        mesh = DeviceMesh.from_group(dist.new_group(backend="nccl" if kind == "cuda" else "xccl"), kind)
        if offload:
            shard(net, mesh, offload_policy=CPUOffloadPolicy())
            net.seen = net.seen.to(kind)
        else:
            shard(net.to(kind), mesh)

    t = Trainer(spec, seed=spec.group, cut=cut)
    need(all(offloaded(p) for p in t.net.parameters()) == offload, "the parameters are not where the policy says")

    def backward(step: int) -> None:
        loss_of(t.model, batch(spec.group, spec.rank, step).to(kind)).backward()

    history = {}
    while t.manager.current_step() < STEPS:
        if t.step(backward):
            history[t.manager.current_step()] = {n: local(p).cpu().clone() for n, p in t.net.named_parameters()}
    t.manager.shutdown()
    return history


def network(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 8))


class Alone:
    """A single group, with a lighthouse in this process."""

    def __init__(self, kit: Kit, address: str, net: nn.Module, forward: Callable[..., Any] | None = None) -> None:
        self.net = net
        sgd = torch.optim.SGD(net.parameters(), lr=0.05)
        self.manager = Manager(
            pg=library_group(kit), load_state_dict=lambda state: net.load_state_dict(state), state_dict=net.state_dict,
            min_replica_size=1, rank=0, world_size=1, store_addr=HOST, store_port=0, hostname=HOST,
            lighthouse_addr=address, replica_id="alone",
        )  # fmt: skip
        self.model = DistributedDataParallel(self.manager, forward or net)  # type: ignore[arg-type]
        self.optimizer = OptimizerWrapper(self.manager, sgd)

    def step(self, x: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(x).square().mean().backward()
        self.optimizer.step()
        need(self.optimizer.committed, "a step of a group that is alone was not committed")


def plain_step(net: nn.Module, model: nn.Module, sgd: torch.optim.Optimizer, x: torch.Tensor) -> None:
    sgd.zero_grad()
    model(x).square().mean().backward()
    sgd.step()


def step_against_plain_ddp(kit: Kit) -> Figures:
    """Check that a single group computes bit for bit what plain PyTorch does, and measure the times of both."""
    width = 256 if kit.on_cpu else 3500  # about 25 million parameters on a card
    first = network(width).to(kit.device)
    nets = [first, copy.deepcopy(first), copy.deepcopy(first)]
    batches = [kit.tensor(16, width, seed=step) for step in range(5)]
    dist.init_process_group("gloo" if kit.on_cpu else "nccl", store=dist.HashStore(), rank=0, world_size=1)
    ddp = nn.parallel.DistributedDataParallel(nets[1])
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in nets[:2]]
    with lighthouse(1) as address:
        ours = Alone(kit, address, nets[2])
        for x in batches:
            plain_step(nets[0], nets[0], optimizers[0], x)
            plain_step(nets[1], ddp, optimizers[1], x)
            ours.step(x)
        for (name, p), q in zip(nets[0].named_parameters(), nets[2].parameters(), strict=True):
            need_equal(q, p, f"{name} after {len(batches)} steps")
        steps = {
            "no wrapper": lambda: plain_step(nets[0], nets[0], optimizers[0], batches[0]),
            "torch's DDP": lambda: plain_step(nets[1], ddp, optimizers[1], batches[0]),
            "ours": lambda: ours.step(batches[0]),
        }
        for name, step in steps.items():
            kit.figures[f"step, {name}, ms"] = round(1000 * kit.seconds(step, 30), 3)
        ours.manager.shutdown()
    kit.figures["parameters"] = sum(p.numel() for p in first.parameters())
    dist.destroy_process_group()
    return kit.figures


def compiled(kit: Kit) -> Figures:
    """Check that a compiled model in our DDP has gradients near the eager ones, and that steps are committed."""
    backend = "aot_eager" if kit.on_cpu else "inductor"  # the CPU's inductor needs a C++ compiler
    net = network(256).to(kit.device)
    eager = copy.deepcopy(net)
    sgd = torch.optim.SGD(eager.parameters(), lr=0.05)
    with lighthouse(1) as address:
        ours = Alone(kit, address, net, torch.compile(net, backend=backend))
        for step in range(3):
            x = kit.tensor(16, 256, seed=step)
            ours.step(x)
            plain_step(eager, eager, sgd, x)
        off = max((p - q).abs().max().item() for p, q in zip(net.parameters(), eager.parameters(), strict=True))
        ours.manager.shutdown()
    kit.figures |= {"backend": backend, "largest difference to eager": off}
    need(off < 1e-4, f"compiled and eager differ by {off:g}")
    return kit.figures
