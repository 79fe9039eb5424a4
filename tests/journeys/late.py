"""A script whose group 1 hangs, or is slow, in one of several ways, in its first life, when it has trained for a while.

python tests/journeys/late.py KIND [SECONDS]

KIND: "loader" the training thread waits for its data, "worker" a worker process of the data loader does, "backward" a hook in
backward, "evaluation" between two steps; for SECONDS, or for ever. "busy" computes between two steps for SECONDS. "slow":
each step takes SECONDS times as long. Of a group of several ranks it happens to the last one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import torch
from plain_sgd import PlainSGD  # beside this file
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from torchft_x import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo, env

KIND, SECONDS = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1e9
STEP, AFTER = 0.1, 50  # seconds of a step; steps until it happens
GROUP, LIFE = env.read(env.REPLICA_GROUP_ID), env.read(env.ATTEMPT)
RANK, SIZE = env.read_int(env.RANK, 0) or 0, env.read_int(env.WORLD_SIZE, 1) or 1
CHOSEN = GROUP == "1" and LIFE == "0" and RANK == SIZE - 1


class Batches(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        number = 0
        while True:
            if KIND == "worker" and CHOSEN and number == AFTER:
                time.sleep(SECONDS)
            yield torch.full((2, 8), float(number % 7))
            number += 1


done: list[bool] = []
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
manager = Manager(
    pg=ProcessGroupGloo(), state_dict=net.state_dict, load_state_dict=net.load_state_dict, min_replica_size=1
)
optimizer = Optimizer(manager, PlainSGD(net.parameters(), lr=0.01))


def trouble(kind: str) -> None:
    """If it is time for it; once, but for "slow"."""
    if not CHOSEN or kind != KIND or manager.current_step() < AFTER or done:
        return
    done.extend([] if kind == "slow" else [True])
    if kind == "busy":
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            torch.ones(64, 64) @ torch.ones(64, 64)
    else:
        time.sleep(SECONDS * STEP if kind == "slow" else SECONDS)


net[0].weight.register_hook(lambda grad: trouble("backward"))
ddp = DistributedDataParallel(manager, net)
for x in DataLoader(Batches(), batch_size=None, num_workers=1 if KIND == "worker" else 0):
    trouble("loader")
    optimizer.zero_grad()
    time.sleep(STEP)
    trouble("slow")
    ddp(x).square().mean().backward()
    optimizer.step()
    trouble("evaluation")
    trouble("busy")
