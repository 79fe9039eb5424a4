"""Training script whose group 1 hangs, or is slow, in its first attempt after it has trained for a while.

python tests/journeys/late.py KIND [SECONDS]

KIND is where the training thread hangs for SECONDS, or for ever: "loader" in waiting for its data, "worker" the same,
in a worker process of the data loader, "backward" in a hook of the backward pass, "evaluation" between two steps.
"busy" computes between two steps for SECONDS. "slow" makes each step take SECONDS times as long. In a group of several
ranks only the last rank is affected.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import torch
from plain_sgd import PlainSGD  # in this file's folder
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from torchft_x import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo, env

KIND, SECONDS = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1e9
STEP, AFTER = 0.1, 30  # seconds of a step; number of steps before the trouble
GROUP, ATTEMPT = env.read(env.REPLICA_GROUP_ID), env.read_attempt().number
RANK, SIZE = env.read_int(env.RANK, 0) or 0, env.read_int(env.WORLD_SIZE, 1) or 1
CHOSEN = GROUP == "1" and ATTEMPT == 0 and RANK == SIZE - 1


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
    """Hang, compute or slow down if this kind is due. All kinds but "slow" occur once."""
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
