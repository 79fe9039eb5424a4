"""Train a small byte-level transformer that is sharded within each replica group; any group may die at any time.

    torchx run ./components.py:hsdp --replicas 2 --workers_per_replica 2 --script scripts/train_hsdp.py -- --steps 200

or, without TorchX, a lighthouse and one supervisor per group (or torchrun: docs/security.md says what it opens):

    export TORCHFT_LIGHTHOUSE=http://localhost:29510
    torchft_x lighthouse --min_replicas 1 &
    torchft_x supervise --group 0 --groups 2 --workers 2 -- scripts/train_hsdp.py
    torchft_x supervise --group 1 --groups 2 --workers 2 -- scripts/train_hsdp.py

Model, data and arguments are in byte_model.py. docs/hsdp.md explains how to write your own script.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from datetime import timedelta

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch's, on machines without NumPy

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from torchft_x import (
    HybridShardedDataParallel,
    Leaving,
    Manager,
    Optimizer,
    ShardedState,
    StepLog,
    defer_compiler_import,
    env,
    errors,
    exit_code,
    local_device,
    process_group_for,
)
from torchft_x.observe.export import track
from torchft_x.train.device import in_group_backend

# Modules of one's own are imported last, so that a first start can be forked (docs/write_a_script.md).
# isort: split
import byte_model  # scripts/byte_model.py: copy it beside this script
from byte_model import (
    Transformer,
    declare,
    load_data,
    make_loader,
    make_optimizer,
    print_device,
    resume,
    set_learning_rate,
)

IN_GROUP_TIMEOUT = 120.0  # seconds a rank waits for the others of its group; the supervisor notices a death by itself


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], conflict_handler="resolve")
    p.add_argument(
        "--data_parallel_replica_degree",
        "--data-parallel-replica-degree",
        type=int,
        default=0,
        help="replica groups of the job, as a check; the launcher decides (its --replicas)",
    )
    p.add_argument(
        "--data_parallel_shard_degree",
        "--data-parallel-shard-degree",
        type=int,
        default=-1,
        help="ranks of a group over which the model is sharded; -1: all that --tensor_parallel_degree leaves",
    )
    p.add_argument(
        "--tensor_parallel_degree",
        "--tensor-parallel-degree",
        type=int,
        default=1,
        help="ranks of a group that share each MLP's work",
    )
    return byte_model.parse_args(argv, p)


def make_mesh(args: argparse.Namespace, kind: str = "cpu") -> DeviceMesh:
    """Return the group's ranks as a mesh (copy, shard, tensor). More ranks than a copy needs make several copies.

    Raise ConfigError if the degrees don't fit the number of ranks or groups.
    """
    groups, ranks = env.read_int("NUM_REPLICA_GROUPS", 0), env.read_int("WORLD_SIZE", 1)
    if args.data_parallel_replica_degree not in (0, groups or args.data_parallel_replica_degree):
        raise errors.ConfigError(
            f"--data_parallel_replica_degree is {args.data_parallel_replica_degree}, but the job has {groups} replica "
            f"groups; start it with --replicas {args.data_parallel_replica_degree}, or leave the argument out."
        )
    tensor, shard = args.tensor_parallel_degree, args.data_parallel_shard_degree
    if shard == -1:
        shard = max(1, ranks // max(1, tensor))
    if tensor < 1 or shard < 1 or ranks % (shard * tensor):
        raise errors.ConfigError(
            f"a group has {ranks} ranks, which can't be divided by --data_parallel_shard_degree {shard} times "
            f"--tensor_parallel_degree {tensor}; start it with another --workers_per_replica."
        )
    return init_device_mesh(
        kind, (ranks // (shard * tensor), shard, tensor), mesh_dim_names=("copy", "shard", "tensor")
    )


def shard_model(model: Transformer, mesh: DeviceMesh) -> None:
    """Shard the model over the group's ranks, as for any FSDP2 training, without regard to other groups."""
    if mesh["tensor"].size() > 1:
        for block in model.blocks:
            parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    data = mesh["copy", "shard"] if mesh["copy"].size() > 1 else mesh["shard"]
    for block in model.blocks:
        fully_shard(block, mesh=data)
    fully_shard(model, mesh=data)


def train(args: argparse.Namespace) -> None:
    defer_compiler_import()  # importing the compiler is half of a start, and most trainings don't need it
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    device = local_device(args.device)
    pg = process_group_for(device, args.process_group)  # between the groups
    if args.track:
        track(args.track)
    data = load_data(args)
    # FSDP uses the group's own process group. The Manager uses `pg` between the groups.
    dist.init_process_group(in_group_backend(device), timeout=timedelta(seconds=IN_GROUP_TIMEOUT))
    mesh = make_mesh(args, device.type)
    # Ranks that share a layer's work see the same part of a micro batch; each other rank has its own.
    parts, part = mesh["copy"].size() * mesh["shard"].size(), dist.get_rank() // mesh["tensor"].size()
    model = Transformer(args).to(device)  # initialised on the CPU, so that all devices get the same weights
    if args.compile:
        for block in model.blocks:
            block.compile(backend=args.compile)  # before FSDP shards it
    shard_model(model, mesh)
    adamw = make_optimizer(args, model)
    shards = ShardedState(model, adamw)

    manager = Manager(
        pg=pg,
        load_state_dict=shards.load_state_dict,
        state_dict=shards.state_dict,
        min_replica_size=args.min_groups,
        timeout=args.timeout,
        replica_id=args.group,
    )
    hsdp = HybridShardedDataParallel(manager, model)  # refuses a group that has another model, or shards it differently
    optimizer = Optimizer(manager, adamw)
    declare(manager, args, data)
    manager.declare("process group", type(pg).__name__)
    batches = make_loader(manager, args, data, rank=part, ranks=parts)
    checkpoint = resume(args, manager, {"model": model, "optim": adamw})  # each rank saves its shards
    # The rate of the coming step is part of the optimizer's state, so that a group that heals gets it with the rest.
    set_learning_rate(args, adamw, manager.current_step())
    log = StepLog(manager, every=args.log_every, last=args.steps)
    print_device(device, pg)

    # All ranks of the group leave together: the others would wait in the next forward.
    with Leaving(manager, checkpoint, dist.group.WORLD) as leaving:
        while manager.current_step() < args.steps and not leaving.requested():
            optimizer.zero_grad()  # starts the quorum, which decides who takes part in this step
            tokens = 0
            for micro in batches.step():  # this rank's part of the step's data
                loss = hsdp(micro.x.to(device), micro.y.to(device))
                loss.backward()  # FSDP averages within the group; the last one averages shards over the groups, too
                tokens += parts * micro.x.numel()
            optimizer.step()  # commits if that worked; else the step is dropped: nothing changes, and it is run again
            if not optimizer.committed:
                continue
            set_learning_rate(args, adamw, manager.current_step())
            log.step(manager.current_step(), loss, tokens=tokens)
            if checkpoint:
                checkpoint.step()
    log.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(exit_code(lambda: train(parse_args())))
