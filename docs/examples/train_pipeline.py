"""A pipeline of two stages in each replica group, one per rank; any group may leave and rejoin.

    torchx run ./components.py:hsdp --replicas 2 --workers_per_replica 2 --script docs/examples/train_pipeline.py -- --steps 200

Each rank holds one stage and its optimizer, and averages its gradients with the same stage of the other groups. After a
failure the step's gradients are kept and reduced again, as in train.py beside this file.
"""

import argparse
import time
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch's, on machines without NumPy

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe  # noqa: E402

from torchft_x import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo  # noqa: E402

MICROBATCHES = 4


def make_stage(rank: int) -> nn.Module:
    torch.manual_seed(rank)
    first = nn.Sequential(nn.Linear(8, 32), nn.Tanh())
    return first if rank == 0 else nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))


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
    dist.init_process_group("gloo")  # within the group; torchrun has set the rest
    rank = dist.get_rank()
    module = make_stage(rank)
    sgd = torch.optim.SGD(module.parameters(), lr=args.lr)

    def state_dict() -> dict:
        return {"stage": module.state_dict(), "sgd": sgd.state_dict()}

    def load_state_dict(state: dict) -> None:
        module.load_state_dict(state["stage"])
        sgd.load_state_dict(state["sgd"])

    manager = Manager(pg=ProcessGroupGloo(), state_dict=state_dict, load_state_dict=load_state_dict, min_replica_size=1)
    ddp = DistributedDataParallel(manager, module)  # rank r averages with rank r of the other groups
    optimizer = Optimizer(manager, sgd)
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    while manager.current_step() < args.steps:
        began = time.monotonic()
        optimizer.zero_grad()
        group, step = manager.participating_rank() or 0, manager.current_step()
        x, y = make_batch(seed=1000 * step + group)
        losses: list[torch.Tensor] = []
        with ddp.no_sync():  # the schedule calls backward once for each microbatch
            schedule.step(x) if rank == 0 else schedule.step(target=y, losses=losses)
        ddp.reduce_gradients()
        optimizer.step()
        if optimizer.committed and losses and group == 0 and (step + 1) % 20 == 0:
            print(f"step {step + 1}: loss {torch.stack(losses).mean().item():.4f}", flush=True)
        time.sleep(max(0.0, began + args.pace - time.monotonic()))
    manager.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
