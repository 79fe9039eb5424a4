"""Training script whose groups differ and that handles no error, so that the job itself must report the difference.

python tests/journeys/differing.py model|data|nothing STEPS
"""

from __future__ import annotations

import sys
import time

import torch
from plain_sgd import PlainSGD  # in this file's folder
from torch import nn

from torchft_x import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo, describe_data, env

what, steps = sys.argv[1], int(sys.argv[2])
group = env.read_int(env.REPLICA_GROUP_ID, 0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3 if what == "model" and group == 1 else 2))
manager = Manager(
    pg=ProcessGroupGloo(), state_dict=net.state_dict, load_state_dict=net.load_state_dict, min_replica_size=1
)
ddp = DistributedDataParallel(manager, net)
manager.declare("data set", *describe_data(b"other text" if what == "data" and group == 1 else b"text", name="text"))
optimizer = Optimizer(manager, PlainSGD(net.parameters(), lr=0.1))
while manager.current_step() < steps:
    optimizer.zero_grad()
    ddp(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
manager.shutdown()
