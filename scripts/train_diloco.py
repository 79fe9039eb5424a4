"""Train a small byte-level transformer in replica groups that train apart and exchange what they learned now and then.

    torchx run ./components.py:diloco --replicas 3 --sync_steps 20 --num_fragments 2 -- --steps 400 --data PATH_OR_URL

or, without TorchX, a lighthouse and one supervisor per group (or torchrun: docs/security.md says what it opens):

    torchft_x lighthouse --min_replicas 1 &
    TORCHFT_LIGHTHOUSE=http://localhost:29510 torchft_x supervise --group 0 --groups 2 -- scripts/train_diloco.py --config debug.toml
    TORCHFT_LIGHTHOUSE=http://localhost:29510 torchft_x supervise --group 1 --groups 2 -- scripts/train_diloco.py --config debug.toml

A group of several workers shards the model over them (FSDP2); with rank0_synchronization_only groups may differ in size. Settings: the section [fault_tolerance] of a TOML file
(--config), --fault_tolerance.KEY=VALUE, or the component's parameters; docs/diloco.md has the list. Model, data and
everything else that has to do with many groups is train_ddp.py's, beside this file. Read it from top to bottom.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
import warnings
from datetime import timedelta

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch says so on machines without NumPy

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

from torchft_x import (  # noqa: E402  # fmt: skip
    DiLoCo,
    Island,
    Leaving,
    LocalSGD,
    Manager,
    ShardedState,
    defer_compiler_import,
    describe_data,
    env,
    errors,
    local_device,
    observe,
)
from torchft_x.train import fault_tolerance  # noqa: E402
from torchft_x.train.device import in_group_backend  # noqa: E402
from torchft_x.train.fault_tolerance import FaultTolerance  # noqa: E402
from torchft_x.train.local.inner_loop import QUORUM_TIMEOUT  # noqa: E402
from torchft_x.train.local.partition import cut_into_fragments  # noqa: E402
from torchft_x.train.step.reductions import ring_bytes  # noqa: E402

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
# Arguments


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Raises ConfigError for a key that isn't known."""
    args = parse_args(argv, argparse.ArgumentParser(description=__doc__.splitlines()[0]), apart=True)
    args.ft = (
        dataclasses.replace(args.ft, process_group=args.process_group) if args.process_group != "auto" else args.ft
    )
    if args.ft.semi_sync_method is None:
        raise errors.ConfigError(
            '[fault_tolerance] doesn\'t say semi_sync_method = "diloco" or "local_sgd": this script is about groups that '
            "train apart; train_ddp.py and train_hsdp.py average each step."
        )
    return args


# ----------------------------------------------------------------------------------------------------------------------
# Training


def train(args: argparse.Namespace) -> None:
    ft: FaultTolerance = args.ft
    (group, rank), ranks = take_place(args), env.read_int("WORLD_SIZE", 1)
    attempt = env.read_int(env.ATTEMPT, 0)  # how often this group was started before
    defer_compiler_import()  # half of a start, and most trainings compile nothing
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    device = local_device(args.device)
    pg = None
    if rank == 0 or not ft.rank0_synchronization_only:
        pg = fault_tolerance.make_process_group(ft)  # says at once what this machine lacks
        if getattr(pg, "takes", None) not in (None, device.type):
            raise errors.ConfigError(
                f"fault_tolerance.process_group {ft.process_group} takes no tensors on {device.type}; choose another --device, "
                "or gloo."
            )
    data = load_data(args)
    voice = Voice(args, group, rank)
    model = Transformer(args).to(device)
    if args.compile:
        for block in model.blocks:
            block.compile(backend=args.compile)  # before FSDP cuts it
    island = None
    if ranks > 1 or ft.rank0_synchronization_only:
        # The group's own process group, for FSDP. That between the groups is the Manager's. Ranks of an island wait in it
        # while their rank 0 waits for the other groups.
        seconds = IN_GROUP_TIMEOUT + (QUORUM_TIMEOUT if ft.rank0_synchronization_only else 0.0)
        dist.init_process_group(in_group_backend(device), timeout=timedelta(seconds=seconds))
        mesh = init_device_mesh(device.type, (ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        island = Island(model) if ft.rank0_synchronization_only else None
    inner = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    inner_state = ShardedState(nn.Module(), inner)  # the optimizer's alone: DiLoCo and LocalSGD heal the weights
    healed = False  # was the state loaded since the last exchange?

    def load_state_dict(state: dict) -> None:
        nonlocal healed
        if island is None:
            inner_state.load_state_dict(state)
        healed = True

    manager, loop = None, None
    if island is not None and not island.leads:
        loop = island.follow(inner)
    else:
        manager = Manager(
            pg=pg,
            load_state_dict=load_state_dict,
            # Islands differ in how they cut the optimizer's state: each begins with its own.
            state_dict=inner_state.state_dict if island is None else dict,
            min_replica_size=args.min_groups,
            use_async_quorum=False,
            timeout=args.timeout,
            replica_id=group,
            **({} if island is None else {"rank": 0, "world_size": 1}),
        )
        manager.declare("data set", *describe_data(data, name=name_of_data(args)))
        shaping = [n for n in SHAPING if island is None or n != "batch_size"]  # unequal islands, unequal batches
        manager.declare("command line", "what shapes the training", [f"{n} {getattr(args, n)}" for n in shaping])
        loop = make_loop(ft, manager, model, inner, island, tokens=ranks * args.batch_size * args.seq_len)
    period = ft.sync_steps // ft.fragments
    last = -(-args.steps // period)  # training ends with an exchange

    checkpoint = None
    if manager is not None:  # rank 0 of an island saves what all islands have in common
        args.checkpoint_every = max(1, args.checkpoint_every // period)  # in exchanges, which are the Manager's steps
        checkpoint = saves_to(args, manager, {"loop": loop, **({} if island else {"inner": inner})})
    dumper = None
    if args.dump_params and manager is not None:
        held = [p.to_local() if ranks > 1 else p for p in model.parameters()]
        if isinstance(loop, DiLoCo):
            held = [t for part in loop.global_parameters for t in part.values()]
        dumper = Dumper(args.dump_params, nn.ParameterList([t.detach() for t in held]), group, rank, attempt)

    if pg is not None:
        say_device(device, pg, group, rank)
    seen, since = loop.exchanges, time.monotonic()
    # By this life: exchanges, and bytes that averaging each step's gradients would have sent.
    exchanged, per_step = (0, 0)
    held_bytes = sum(p.nbytes for p in model.parameters()) // (1 if island is not None else ranks)  # by this rank
    loss = torch.zeros(())

    def look() -> None:
        """After each inner step: has it ended with an exchange?"""
        nonlocal seen, since, healed, exchanged, per_step
        voice.catch_up()
        if loop.exchanges == seen:
            return
        steps, seen = (loop.exchanges - seen) * period, loop.exchanges
        if dumper:
            dumper.write(seen, t=time.time(), committed_in=voice.story.committed_in, healed=healed)
        healed = False
        rate = steps * args.batch_size * args.seq_len * ranks * voice.participants / (time.monotonic() - since)
        since = time.monotonic()
        if training and manager is not None:
            exchanged += 1
            per_step += period * ring_bytes(held_bytes, voice.participants)
        if voice.speaks and (seen % max(1, args.log_every // period) == 0 or seen == last):
            print(
                f"step {seen * period:>5} | exchange {seen} | loss {loss.item():.4f} | groups {voice.participants} | "
                f"{rate:,.0f} tokens/s",
                flush=True,
            )
            if manager is not None:
                manager.log(loss=loss.item())  # for `torchft_x report`
        if checkpoint and training:
            checkpoint.step()

    training = False
    # All ranks of the group leave together: the others would wait in the next forward.
    leaving = Leaving(manager, checkpoint, dist.group.WORLD if ranks > 1 else None)
    with leaving, loop:  # waits for the others, and has their weights from here on
        look()
        training = True
        while loop.exchanges < last and not leaving.told():
            if is_told_to_stop(args, loop.exchanges):
                break
            began = time.monotonic()
            # Data and rate are functions of the common progress: what a group loses it draws again when it is back.
            step = loop.progress
            for param_group in inner.param_groups:
                param_group["lr"] = learning_rate(args, step)
            inner.zero_grad()
            loss = model(*(t.to(device) for t in get_batch(data, args, step, f"{group}.{rank}")))
            loss.backward()  # within the group only
            inner.step()  # the last one of a period comes back with what all groups have learned
            time.sleep(max(0.0, began + args.pace - time.monotonic()))
            look()

    if voice.speaks:
        if manager is not None and manager.bytes_sent() and per_step:
            print(
                f"sent {megabytes(manager.bytes_sent())} in {exchanged} exchanges; per-step DDP would have sent "
                f"{megabytes(per_step)}, {per_step / manager.bytes_sent():,.0f} x as much",
                flush=True,
            )
        print(observe.summary(voice.story, env.read(env.RUN_DIR)), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


def make_loop(
    ft: FaultTolerance,
    manager: Manager,
    model: nn.Module,
    inner: torch.optim.Optimizer,
    island: Island | None,
    *,
    tokens: int,
) -> DiLoCo | LocalSGD:
    """`tokens`: of one inner step of this group. Groups of unequal size count by them."""
    weight = (lambda: float(tokens)) if island is not None else None
    if ft.semi_sync_method == "local_sgd":
        if island is not None:
            raise errors.ConfigError(
                "fault_tolerance.rank0_synchronization_only works with semi_sync_method diloco only."
            )
        return LocalSGD(manager, model, inner, ft.sync_steps)
    parts = (
        [island.whole]
        if island is not None
        else cut_into_fragments(model, ft.num_fragments, ft.module_fqns_per_model_fragment)
    )
    outer = [torch.optim.SGD(m.parameters(), lr=0.7, momentum=0.9, nesterov=True) for m in parts]
    return DiLoCo(
        manager, parts, inner, outer, ft.sync_steps,
        should_quantize=ft.should_quantize,
        fragment_sync_delay=ft.fragment_sync_delay,
        fragment_update_alpha=ft.fragment_update_alpha,
        copy_pseudogradients_to_cpu=ft.copy_pseudogradients_to_cpu,
        island=island,
        weight=weight,
    )  # fmt: skip


def megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 100_000 else f"{nbytes / 1e3:,.1f} kB"


if __name__ == "__main__":
    sys.exit(exit_code(lambda: train(arguments())))
