"""A script whose group 1 hangs, or fails, in its first life, when it has trained with the others for a while.

python tests/extended/jobs/hanging.py nap|boom
"""

from __future__ import annotations

import sys
import time
from typing import NoReturn

import torch
from plain_sgd import PlainSGD  # beside this file
from torch import nn

from torchft_x import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo, env


def telltale_nap() -> NoReturn:
    print("good night", flush=True)
    while True:
        time.sleep(0.1)


def boom() -> NoReturn:
    print("my last line", flush=True)
    raise ArithmeticError("telltale trouble")


first_life_of_group_1 = (env.read(env.REPLICA_GROUP_ID), env.read(env.ATTEMPT)) == ("1", "0")
trouble = {"nap": telltale_nap, "boom": boom}[sys.argv[1]]
torch.set_num_threads(1)
net = nn.Linear(8, 4)
manager = Manager(
    pg=ProcessGroupGloo(), state_dict=net.state_dict, load_state_dict=net.load_state_dict, min_replica_size=1
)
ddp = DistributedDataParallel(manager, net)
optimizer = Optimizer(manager, PlainSGD(net.parameters(), lr=0.01))
while True:
    time.sleep(0.02)
    optimizer.zero_grad()
    loss = ddp(torch.ones(2, 8)).square().mean()
    if first_life_of_group_1 and manager.current_step() > 10 and manager.num_participants() == 2:
        trouble()
    loss.backward()
    optimizer.step()
