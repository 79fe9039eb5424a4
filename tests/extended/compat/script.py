"""A training script for torchft, as its users have them: it knows no torchft_x. ddp or diloco; prints a digest per step."""

import hashlib
import os
import sys
from datetime import timedelta

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo
from torchft.checkpointing.http_transport import HTTPTransport
from torchft.checkpointing.pg_transport import PGTransport
from torchft.local_sgd import DiLoCo

GROUP = int(os.environ["REPLICA_GROUP_ID"])
ALGORITHM, STOP = sys.argv[1:]


def tell(manager: Manager, values) -> None:
    flat = torch.cat([v.detach().flatten() for v in values])
    digest = hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16]
    print(f"step {manager.current_step()} {manager.num_participants()} {digest}", flush=True)


def last() -> int:
    """The step after which to end: a file says it, in good time."""
    return int(open(STOP).read()) if os.path.exists(STOP) else 1_000_000


def batches():
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(512, 6, generator=generator), torch.randint(0, 3, (512,), generator=generator))
    sampler = DistributedSampler(data, replica_rank=GROUP, num_replica_groups=2, group_rank=0, num_replicas=1)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    while True:
        yield from loader


def main() -> None:
    torch.manual_seed(GROUP)  # so only the others' weights can make them equal
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    pg = ProcessGroupGloo(timeout=timedelta(seconds=20))
    criterion = nn.CrossEntropyLoss()
    inner = optim.AdamW(model.parameters(), lr=1e-3)

    def load_state_dict(state_dict):
        model.load_state_dict(state_dict["model"])
        inner.load_state_dict(state_dict["optim"])
        if ALGORITHM == "diloco":
            assert diloco is not None

    def state_dict():
        if ALGORITHM == "diloco":
            assert diloco is not None  # the object that `with ... as` gives, as torchft's own trainers have it
        return {"model": model.state_dict(), "optim": inner.state_dict()}

    transport = (
        PGTransport(pg, timeout=timedelta(seconds=20), device="cpu")
        if ALGORITHM == "ddp"
        else HTTPTransport(timeout=timedelta(seconds=20), num_chunks=0)
    )
    manager = Manager(
        pg=pg,
        use_async_quorum=ALGORITHM == "ddp",
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_{GROUP}",
        timeout=timedelta(seconds=30),
        checkpoint_transport=transport,
    )

    def step(forward, optimizer) -> None:
        inputs, labels = next(source)
        optimizer.zero_grad()
        criterion(forward(inputs), labels).backward()
        optimizer.step()

    source = batches()
    if ALGORITHM == "ddp":
        ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
        while manager.current_step() < last():
            before = manager.current_step()
            step(ddp, optimizer)
            if manager.current_step() != before:
                tell(manager, model.parameters())
    else:
        outer = optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        with DiLoCo(manager, [model], inner, outer, sync_every=4) as diloco:
            while manager.current_step() < last():
                before = manager.current_step()
                step(model, inner)
                if manager.current_step() > before:
                    common = manager._manager_state_dict()["user"]["StreamingDiLoCoFragment_0"]
                    tell(manager, common["original_parameters"].values())
    manager.shutdown()


if __name__ == "__main__":
    main()
