"""Train a small byte-level transformer in replica groups that train apart and exchange what they learned now and then.

    torchx run ./components.py:diloco --replicas 3 --sync_steps 20 --num_fragments 2 -- --steps 400 --data PATH_OR_URL

or, without TorchX, a lighthouse and one supervisor per group (or torchrun: docs/security.md says what it opens):

    export TORCHFT_LIGHTHOUSE=http://localhost:29510
    torchft_x lighthouse --min_replicas 1 &
    torchft_x supervise --group 0 --groups 2 -- scripts/train_diloco.py --config debug.toml
    torchft_x supervise --group 1 --groups 2 -- scripts/train_diloco.py --config debug.toml

A group of several workers shards the model over them (FSDP2). With rank0_synchronization_only each group is an island,
in which rank 0 exchanges for all ranks, so that groups may differ in size. Settings: the section [fault_tolerance] of a
TOML file (--config), --fault_tolerance.KEY=VALUE, or the component's parameters; docs/diloco.md has the list. Model,
data and arguments are in byte_model.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import warnings
from datetime import timedelta

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch's, on machines without NumPy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from torchft_x import (
    DiLoCo,
    Island,
    Leaving,
    LocalSGD,
    Manager,
    ShardedState,
    StepLog,
    defer_compiler_import,
    env,
    exit_code,
    local_device,
    process_group_for,
)
from torchft_x.observe.export import track
from torchft_x.timing import LONGEST_WAIT
from torchft_x.train.device import in_group_backend
from torchft_x.train.local.partition import cut_into_fragments
from torchft_x.train.step.reductions import ring_bytes

# Modules of one's own are imported last, so that a first start can be forked (docs/write_a_script.md).
# isort: split
import byte_model  # scripts/byte_model.py: copy it beside this script
from byte_model import (
    Transformer,
    declare,
    get_batch,
    load_data,
    make_loader,
    make_optimizer,
    print_device,
    resume,
    set_learning_rate,
)

IN_GROUP_TIMEOUT = 120.0  # seconds a rank waits for the others of its group; the supervisor notices a death by itself


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args = byte_model.parse_args(argv, parser, apart=True)
    if args.process_group != "auto":
        args.ft = dataclasses.replace(args.ft, process_group=args.process_group)
    return args


def shard_model(args: argparse.Namespace, model: Transformer, device: torch.device, ranks: int) -> Island | None:
    """Shard the model over the group's ranks, as for any FSDP2 training. Return the island, if the group is one."""
    islands = args.ft.rank0_synchronization_only
    if ranks == 1 and not islands:
        return None
    # The group's own process group. In an island its ranks wait in it while their rank 0 waits for the other groups.
    seconds = IN_GROUP_TIMEOUT + (LONGEST_WAIT if islands else 0.0)
    dist.init_process_group(in_group_backend(device), timeout=timedelta(seconds=seconds))
    mesh = init_device_mesh(device.type, (ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return Island(model) if islands else None


def make_loop(
    args: argparse.Namespace,
    manager: Manager | None,
    model: nn.Module,
    inner: torch.optim.Optimizer,
    island: Island | None,
    tokens: int,
) -> DiLoCo | LocalSGD | object:
    """Return the context in which `inner` steps and groups exchange. `tokens` is the number in a group's inner step."""
    ft = args.ft
    if manager is None:
        return island.follow(inner)
    if ft.semi_sync_method == "local_sgd":
        return LocalSGD(manager, model, inner, ft.sync_steps)
    if island is not None:
        parts = [island.whole]
    else:
        parts = cut_into_fragments(model, ft.num_fragments, ft.module_fqns_per_model_fragment)
    outer = [torch.optim.SGD(m.parameters(), lr=0.7, momentum=0.9, nesterov=True) for m in parts]
    return DiLoCo(
        manager,
        parts,
        inner,
        outer,
        ft.sync_steps,
        should_quantize=ft.should_quantize,
        fragment_sync_delay=ft.fragment_sync_delay,
        fragment_update_alpha=ft.fragment_update_alpha,
        copy_pseudogradients_to_cpu=ft.copy_pseudogradients_to_cpu,
        island=island,
        weight=(lambda: float(tokens)) if island is not None else None,  # groups of unequal size count by their tokens
    )


def train(args: argparse.Namespace) -> None:
    defer_compiler_import()  # importing the compiler is half of a start, and most trainings don't need it
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rank, ranks = env.read_int("RANK", 0), env.read_int("WORLD_SIZE", 1)
    leads = rank == 0 or not args.ft.rank0_synchronization_only  # otherwise rank 0 exchanges for this rank
    device = local_device(args.device)
    pg = process_group_for(device, args.ft.process_group, args.timeout) if leads else None  # between the groups
    if args.track:
        track(args.track)
    data = load_data(args)
    model = Transformer(args).to(device)  # initialised on the CPU, so that all devices get the same weights
    if args.compile:
        for block in model.blocks:
            block.compile(backend=args.compile)  # before FSDP shards it
    island = shard_model(args, model, device, ranks)
    inner = make_optimizer(args, model)
    state = ShardedState(nn.Module(), inner)  # state of the inner optimizer alone: DiLoCo and LocalSGD heal the weights

    manager = checkpoint = None
    if leads:
        # Islands shard the inner optimizer's state differently, so that each starts with its own instead of healing it.
        manager = Manager(
            pg=pg,
            load_state_dict=state.load_state_dict if island is None else lambda state: None,
            state_dict=state.state_dict if island is None else dict,
            min_replica_size=args.min_groups,
            use_async_quorum=False,
            timeout=args.timeout,
            replica_id=args.group,
            **({} if island is None else {"rank": 0, "world_size": 1}),
        )
        # Islands of unequal size have unequal batches.
        declare(manager, args, data, but=() if island is None else ("batch_size",))
    # An island's other ranks have no Manager, and an exchange in the background ends behind the samples of later steps: both
    # draw their data at random instead.
    exact = island is None and manager is not None and not args.ft.fragment_sync_delay
    batches = make_loader(manager, args, data, rank=rank, ranks=ranks) if exact else None
    tokens = (1 if exact else ranks) * args.batch_size * args.seq_len  # tokens of a group in an inner step
    loop = make_loop(args, manager, model, inner, island, tokens)
    period = args.ft.sync_steps // args.ft.fragments  # inner steps between two exchanges
    last = -(-args.steps // period)  # training ends with an exchange
    if leads:  # rank 0 of an island saves what all islands have in common
        args.checkpoint_every = max(1, args.checkpoint_every // period)  # in exchanges, which are the Manager's steps
        checkpoint = resume(args, manager, {"loop": loop, **({} if island else {"inner": inner})})
        print_device(device, pg)
    log = StepLog(manager, every=max(1, args.log_every // period), last=last)
    held = sum(p.nbytes for p in model.parameters()) // (1 if island is not None else ranks)  # bytes of this rank
    # Since this start: number of exchanges, and bytes that averaging each step's gradients would have sent.
    exchanged, per_step = 0, 0

    # All ranks of the group leave together: the others would wait in the next forward.
    with Leaving(manager, checkpoint, dist.group.WORLD if ranks > 1 else None) as leaving, loop:
        while (done := loop.exchanges) < last and not leaving.requested():
            # Data and rate are functions of the common progress, so that a group that comes back goes on with the others.
            set_learning_rate(args, inner, loop.progress)
            if batches is not None:
                micro = next(batches.step())  # this rank's part of the group's next samples
                x, y = micro.x, micro.y
            else:
                x, y = get_batch(data, args, loop.progress, f"{args.group}.{rank}")
            inner.zero_grad()
            loss = model(x.to(device), y.to(device))
            loss.backward()  # within the group only
            inner.step()  # the last one of a period exchanges: it returns with the average of all groups
            if loop.exchanges == done:
                continue
            if manager is not None:
                exchanged += 1
                per_step += period * ring_bytes(held, log.participants)
            label = f"step {loop.exchanges * period:>5} | exchange {loop.exchanges}"
            log.step(loop.exchanges, loss, tokens=period * tokens, label=label)
            if checkpoint:
                checkpoint.step()
    sent = manager.bytes_sent() if manager is not None else 0
    if sent and per_step:
        log.close(
            f"sent {megabytes(sent)} in {exchanged} exchanges; per-step DDP would have sent {megabytes(per_step)}, "
            f"{per_step / sent:,.0f} x as much"
        )
    else:
        log.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 100_000 else f"{nbytes / 1e3:,.1f} kB"


if __name__ == "__main__":
    sys.exit(exit_code(lambda: train(parse_args())))
