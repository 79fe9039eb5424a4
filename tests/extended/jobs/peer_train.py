"""Train with torchft's own Manager, DDP and optimizer wrapper, in the peer's Python, which has no torchft_x.

One JSON line is printed per committed step: step, digest of the parameters, number of participants.
"""

import hashlib
import json
import os
import sys
from datetime import timedelta

import torch
import torchft
from torch import nn


def main(group: str, until_file: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(int(group))  # different seeds: init_sync must make the parameters equal
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def load(state: dict) -> None:
        model.load_state_dict(state["model"])
        sgd.load_state_dict(state["optim"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optim": sgd.state_dict()},
        min_replica_size=1,
        replica_id=f"peer_{group}",
        timeout=timedelta(seconds=20),
        rank=0,
        world_size=1,
    )
    ddp = torchft.DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, sgd)
    rng = torch.Generator().manual_seed(17 + int(group))
    while not os.path.exists(until_file):
        optimizer.zero_grad()
        x = torch.randn(8, 16, generator=rng)
        ddp(x).square().mean().backward()
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            raw = b"".join(bytes(p.detach().reshape(-1).view(torch.uint8).tolist()) for p in model.parameters())
            line = {"step": manager.current_step(), "digest": hashlib.sha256(raw).hexdigest()}
            print(json.dumps({**line, "groups": manager.num_participants()}), flush=True)
    manager.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
