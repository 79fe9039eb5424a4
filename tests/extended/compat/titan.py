"""A training loop around torchtitan's own fault-tolerance classes, which import torchft: run under torchft_x.compat.

What is torchtitan's here is unmodified: its manager with each `semi_sync_method`, its optimizers' container, its reduction in
FSDP2's hook. Its Trainer wants an accelerator, so loop and model are ours.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchtitan.components.optimizer import default_adamw
from torchtitan.experiments.torchft.config import FaultTolerance
from torchtitan.experiments.torchft.manager import maybe_semi_sync_training
from torchtitan.experiments.torchft.optimizer import TorchFTOptimizersContainer


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("method", choices=["none", "diloco", "local_sgd"])
    p.add_argument("--steps", type=int, default=100, help="committed steps, or exchanges")
    args = p.parse_args()
    group, groups = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["NUM_REPLICA_GROUPS"])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # of the group, for FSDP2
    config = FaultTolerance(
        enable=True, process_group="gloo", replica_id=group, group_size=groups, min_replica_size=1, sync_steps=4,
        semi_sync_method=None if args.method == "none" else args.method,
    )  # fmt: skip
    ft_manager = config.build()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    ft_manager.maybe_set_all_reduce_hook([model])
    optimizers = TorchFTOptimizersContainer.Config(
        param_groups=default_adamw(lr=1e-2).param_groups, implementation="for-loop"
    ).build(model_parts=[model], ft_manager=ft_manager)
    optimizers.init_cache_state_dict()

    def load(state: dict) -> None:
        model.load_state_dict(state["model"])
        optimizers.load_state_dict(state["optimizer"])

    manager = ft_manager.manager
    manager.set_state_dict_fns(load, lambda: {"model": model.state_dict(), "optimizer": optimizers.state_dict()})
    data = torch.Generator().manual_seed(group)
    told = 0
    with maybe_semi_sync_training(config, ft_manager, model, 1, optimizers):
        while manager.current_step() < args.steps:
            optimizers.zero_grad()
            x = torch.randn(16, 8, generator=data)
            loss = nn.functional.mse_loss(model(x), x.mean(1, keepdim=True))
            loss.backward()
            optimizers.step()
            if manager.current_step() >= told + 5:
                told = manager.current_step() // 5 * 5
                print(f"step {told}: loss {loss.item():.4f}", flush=True)
        digest = sum(float(p.full_tensor().detach().double().sum()) for p in model.parameters())
    print(f"done at step {manager.current_step()}: sum of the weights {digest:.12f}", flush=True)
    manager.shutdown()


if __name__ == "__main__":
    main()
