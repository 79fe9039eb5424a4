"""Training script of which one group computes wrong gradients, from the fifth step on that three groups train together.

FAULTY_GROUP in the environment is its number, ENOUGH the path of a file after whose creation the others end.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from tests.journeys.plain_sgd import PlainSGD
from torchft_x import DistributedDataParallel, ElasticLoader, Manager, Optimizer, ProcessGroupGloo, env

GROUPS = 3


def flipped(grad: torch.Tensor) -> torch.Tensor:
    wrong = grad.clone()
    wrong.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << 3)
    return wrong


torch.set_num_threads(1)
torch.manual_seed(0)
faulty = env.read_int(env.REPLICA_GROUP_ID, 0) == int(os.environ["FAULTY_GROUP"])
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
manager = Manager(
    pg=ProcessGroupGloo(), state_dict=net.state_dict, load_state_dict=net.load_state_dict, min_replica_size=GROUPS - 1
)
ddp = DistributedDataParallel(manager, net)
optimizer = Optimizer(manager, PlainSGD(net.parameters(), lr=0.01))
data = ElasticLoader(
    manager, torch.randn(600, 6), global_batch=12, micro_batch=2, policy="strict", reproducible=True, check_every=4
)
together, enough = 0, False
while not enough:
    optimizer.zero_grad()
    seen = torch.tensor([float(Path(os.environ["ENOUGH"]).exists())])
    manager.allreduce(seen).wait()
    for micro in data.step():
        ddp(micro.batch).square().mean().backward()
    optimizer.step()
    if optimizer.committed:
        enough = bool(seen > 0)  # equal in all groups
        together += manager.num_participants() == GROUPS
    if faulty and together == 5:
        net[0].weight.register_hook(flipped)
manager.shutdown()
