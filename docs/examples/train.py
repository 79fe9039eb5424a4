"""Training script of my_component.py: a regression that any of several replica groups may leave and rejoin."""

import argparse
import os
import time

import torch

from torchft_x import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def make_batch(seed: int, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs and their means, the targets. Equal seeds give equal batches."""
    x = torch.randn(size, 8, generator=torch.Generator().manual_seed(seed))
    return x, x.mean(1, keepdim=True)


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--pace", type=float, default=0.02, help="seconds; no step is shorter (to watch it)")
    args = p.parse_args()
    torch.manual_seed(0)
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=args.lr)

    def state_dict() -> dict:
        return {"model": model.state_dict(), "sgd": sgd.state_dict()}

    def load_state_dict(state: dict) -> None:
        model.load_state_dict(state["model"])
        sgd.load_state_dict(state["sgd"])

    manager = Manager(pg=ProcessGroupGloo(), state_dict=state_dict, load_state_dict=load_state_dict, min_replica_size=1)
    ddp = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, sgd)
    while manager.current_step() < args.steps:
        began = time.monotonic()
        optimizer.zero_grad()
        rank, step = manager.participating_rank() or 0, manager.current_step()
        x, y = make_batch(seed=1000 * step + rank)
        loss = torch.nn.functional.mse_loss(ddp(x), y)
        loss.backward()
        optimizer.step()
        if optimizer.committed and rank == 0 and (step + 1) % 20 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
            save({"step": step + 1, "model": model.state_dict()})
        time.sleep(max(0.0, began + args.pace - time.monotonic()))
    manager.shutdown()


def save(state: dict) -> None:
    """Write the state atomically into the run directory."""
    path = os.path.join(os.environ["TORCHFT_X_RUN_DIR"], "model.pt")
    with open(f"{path}.part-{os.getpid()}", "wb") as f:  # given a path, torch would hide errors of the disk
        torch.save(state, f)
    os.replace(f"{path}.part-{os.getpid()}", path)


if __name__ == "__main__":
    main()
