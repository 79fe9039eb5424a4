"""Train a small byte-level transformer with several replica groups, any of which may die at any time.

    torchx run ./components.py:ddp --replicas 2 --script scripts/train_ddp.py -- --steps 200 --data PATH_OR_URL

or, without TorchX, a lighthouse and one supervisor per group (or torchrun: docs/security.md says what it opens):

    torchft_x lighthouse --min_replicas 1 &
    TORCHFT_LIGHTHOUSE=http://localhost:29510 torchft_x supervise --group 0 --groups 2 -- scripts/train_ddp.py
    TORCHFT_LIGHTHOUSE=http://localhost:29510 torchft_x supervise --group 1 --groups 2 -- scripts/train_ddp.py

Every worker holds the whole model; the workers of a group compute the same batch. Model, data and arguments are in
byte_model.py. Data, learning rate, log and checkpoint are functions of the number of *committed* steps, which makes the
training fault tolerant. docs/write_a_script.md explains how to write your own script.
"""

from __future__ import annotations

import argparse
import sys
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch's, on machines without NumPy

import torch

from torchft_x import (
    DistributedDataParallel,
    Leaving,
    Manager,
    Optimizer,
    StepLog,
    defer_compiler_import,
    exit_code,
    local_device,
    process_group_for,
)
from torchft_x.observe.export import track

# Modules of one's own are imported last, so that a first start can be forked (docs/write_a_script.md).
# isort: split
from byte_model import (  # scripts/byte_model.py: copy it beside this script
    Transformer,
    declare,
    load_data,
    make_loader,
    make_optimizer,
    parse_args,
    print_device,
    resume,
    set_learning_rate,
)


def train(args: argparse.Namespace) -> None:
    defer_compiler_import()  # importing the compiler is half of a start, and most trainings don't need it
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    device = local_device(args.device)
    pg = process_group_for(device, args.process_group)  # between the groups
    if args.track:
        track(args.track)
    data = load_data(args)
    model = Transformer(args).to(device)
    if args.compile:
        model.compile(backend=args.compile)  # in place, so that it can train with groups that don't compile
    adamw = make_optimizer(args, model)

    def state_dict() -> dict:
        return {"model": model.state_dict(), "optim": adamw.state_dict()}

    def load_state_dict(state: dict) -> None:
        model.load_state_dict(state["model"])
        adamw.load_state_dict(state["optim"])

    manager = Manager(
        pg=pg,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=args.min_groups,
        timeout=args.timeout,
        replica_id=args.group,
    )
    ddp = DistributedDataParallel(manager, model)  # refuses a group that has another model
    optimizer = Optimizer(manager, adamw)
    declare(manager, args, data)
    manager.declare("process group", type(pg).__name__)
    batches = make_loader(manager, args, data)
    checkpoint = resume(args, manager, {"model": model, "optim": adamw})
    # The rate of the coming step is part of the optimizer's state, so that a group that heals gets it with the rest.
    set_learning_rate(args, adamw, manager.current_step())
    log = StepLog(manager, every=args.log_every, last=args.steps)
    print_device(device, pg)

    with Leaving(manager, checkpoint) as leaving:
        while manager.current_step() < args.steps and not leaving.requested():
            optimizer.zero_grad()  # starts the quorum, which decides who takes part in this step
            tokens = 0
            for micro in batches.step():  # this group's part of the step's data
                loss = ddp(micro.x.to(device), micro.y.to(device))
                loss.backward()  # the last one also averages the gradients over the groups
                tokens += micro.x.numel()
            optimizer.step()  # commits if that worked; else the step is dropped: nothing changes, and it is run again
            if not optimizer.committed:
                continue
            set_learning_rate(args, adamw, manager.current_step())
            log.step(manager.current_step(), loss, tokens=tokens)
            if checkpoint:
                checkpoint.step()  # one group saves, beside the training
    log.close()


if __name__ == "__main__":
    sys.exit(exit_code(lambda: train(parse_args())))
