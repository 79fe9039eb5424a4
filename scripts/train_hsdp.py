"""Train a small byte-level transformer that is sharded within each replica group; any group may die at any time.

    torchx run ./components.py:hsdp --replicas 2 --workers_per_replica 2 --script scripts/train_hsdp.py -- --steps 200

or, without TorchX, a lighthouse and one supervisor per group (or torchrun: docs/security.md says what it opens):

    torchft_x lighthouse --min_replicas 1 &
    TORCHFT_LIGHTHOUSE=http://localhost:29510 torchft_x supervise --group 0 --groups 2 --workers 2 -- scripts/train_hsdp.py
    TORCHFT_LIGHTHOUSE=http://localhost:29510 torchft_x supervise --group 1 --groups 2 --workers 2 -- scripts/train_hsdp.py

Model, data and everything else that has to do with many groups is train_ddp.py's, beside this file; here is what a
sharded model changes (--fault_tolerance.KEY and so on are understood there). Read it from top to bottom. docs/hsdp.md says how to do the same to your own script.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from datetime import timedelta

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch says so on machines without NumPy

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402

from torchft_x import (  # noqa: E402
    HybridShardedDataParallel,
    Leaving,
    Manager,
    Optimizer,
    ShardedState,
    defer_compiler_import,
    describe_data,
    env,
    errors,
    local_device,
    observe,
    process_group_for,
)
from torchft_x.train.device import in_group_backend  # noqa: E402

# Only torch and ours above, so that a first life can be forked (docs/write_a_script.md).
# isort: split
from train_ddp import (  # noqa: E402  # beside this file
    SHAPING,
    Dumper,
    Transformer,
    Voice,
    exit_code,
    get_batch,
    is_told_to_stop,
    learning_rate,
    load_data,
    name_of_data,
    parse_args,
    saves_to,
    say_device,
    take_place,
)

IN_GROUP_TIMEOUT = 120.0  # seconds a rank waits for the others of its group; the supervisor notices a death by itself

# ----------------------------------------------------------------------------------------------------------------------
# Arguments, and who holds what


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
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
    return parse_args(argv, p)


def make_mesh(args: argparse.Namespace, kind: str = "cpu") -> DeviceMesh:
    """The group's ranks as (copies, shard, tensor), on devices of this kind. Copies are within the group: more ranks than one copy needs."""
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
    """Cut it over the group's ranks, as for any FSDP2 training: nothing in here knows of other groups."""
    if mesh["tensor"].size() > 1:
        for block in model.blocks:
            parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    data = mesh["copy", "shard"] if mesh["copy"].size() > 1 else mesh["shard"]
    for block in model.blocks:
        fully_shard(block, mesh=data)
    fully_shard(model, mesh=data)


# ----------------------------------------------------------------------------------------------------------------------
# Training


def train(args: argparse.Namespace) -> None:
    group, rank = take_place(args)
    attempt = env.read_int(env.ATTEMPT, 0)  # how often this group was started before
    defer_compiler_import()  # half of a start, and most trainings compile nothing
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    device = local_device(args.device)
    pg = process_group_for(device, args.process_group)  # says at once what this machine lacks

    data = load_data(args)
    # The group's own process group, for FSDP. That between the groups is the Manager's.
    dist.init_process_group(in_group_backend(device), timeout=timedelta(seconds=IN_GROUP_TIMEOUT))
    mesh = make_mesh(args, device.type)
    # Ranks that share a layer's work see the same batch; all others one of their own.
    streams, stream = mesh["copy"].size() * mesh["shard"].size(), rank // mesh["tensor"].size()

    voice = Voice(args, group, rank)
    model = Transformer(args).to(device)  # made on the CPU: the same weights wherever it goes
    if args.compile:
        for block in model.blocks:
            block.compile(backend=args.compile)  # before FSDP cuts it
    shard_model(model, mesh)
    adamw = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    shards = ShardedState(model, adamw)
    healed = False  # was the state loaded since the last commit?
    drawn = 0  # batches this process has drawn; check_params.py counts those that were thrown away

    def load_state_dict(state: dict) -> None:
        nonlocal healed
        shards.load_state_dict(state)
        healed = True

    def set_lr(step: int) -> None:
        # The rate of the coming step is part of the optimizer's state, so a group that heals gets it with the rest.
        for param_group in adamw.param_groups:
            param_group["lr"] = learning_rate(args, step)

    manager = Manager(
        pg=pg,
        load_state_dict=load_state_dict,
        state_dict=shards.state_dict,
        min_replica_size=args.min_groups,
        timeout=args.timeout,
        replica_id=group,
    )
    hsdp = HybridShardedDataParallel(manager, model)  # also tells the others the model, and how it is sharded
    manager.declare("data set", *describe_data(data, name=name_of_data(args)))
    manager.declare("command line", "what shapes the training", [f"{n} {getattr(args, n)}" for n in SHAPING])
    manager.declare("process group", type(pg).__name__)
    optimizer = Optimizer(manager, adamw)
    dumper = None
    if args.dump_params:
        held = nn.ParameterList([p.to_local().detach() for p in model.parameters()])  # this rank's own memory
        dumper = Dumper(args.dump_params, held, group, rank, attempt)
    checkpoint = saves_to(args, manager, {"model": model, "optim": adamw})  # each rank its shards
    set_lr(manager.current_step())
    say_device(device, pg, group, rank)

    # All ranks of the group leave together: the others would wait in the next forward.
    with Leaving(manager, checkpoint, dist.group.WORLD) as leaving:
        while manager.current_step() < args.steps and not leaving.told():
            if is_told_to_stop(args, manager.current_step()):
                break
            began = time.monotonic()
            optimizer.zero_grad()  # asks who takes part in this step
            participant = manager.participating_rank()  # None: a healing group contributes zeros, whatever it computes
            step = manager.current_step()  # the same in all groups that take part
            drawn += 1
            batch = get_batch(data, args, step, (participant or 0) * streams + stream)
            loss = hsdp(*(t.to(device) for t in batch))
            loss.backward()  # FSDP averages within the group, then rank r of all groups averages its shards
            optimizer.step()  # ... if all of that worked; otherwise the step is dropped: nothing changes, it is run again

            time.sleep(max(0.0, began + args.pace - time.monotonic()))
            voice.catch_up()
            if not optimizer.committed:
                continue
            step = manager.current_step()
            set_lr(step)
            if dumper:
                dumper.write(
                    step, t=time.time(), committed_in=voice.story.committed_in, healed=healed, drawn=drawn,
                    participant=participant, participants=voice.participants, loss=loss.item(),
                )  # fmt: skip
            healed = False
            voice.log(manager, step, loss, voice.participants, streams)
            if checkpoint:
                checkpoint.step()

    if voice.speaks:
        print(observe.summary(voice.story, env.read(env.RUN_DIR)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(exit_code(lambda: train(arguments())))
