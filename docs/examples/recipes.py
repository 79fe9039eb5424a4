"""Training loop with the features of real loops. docs/write_a_script.md, "Recipes", explains the place of each line.

The script runs alone (`python recipes.py`) or in groups:

    torchx run -s local_cwd ./components.py:ddp --script docs/examples/recipes.py
"""

import argparse
import os
from contextlib import nullcontext

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

from torchft_x import DistributedDataParallel, DistributedSampler, Leaving, Manager, Optimizer, ProcessGroupGloo

BATCH, ACCUMULATE = 16, 2  # samples per backward, backwards per step


class Batches:
    """Batches by step. A repeated step gets the same ones; after a heal or a checkpoint they follow the new step."""

    def __init__(self, data: TensorDataset) -> None:
        group, groups = int(os.environ.get("REPLICA_GROUP_ID", 0)), int(os.environ.get("NUM_REPLICA_GROUPS", 1))
        self.sampler, self.data = DistributedSampler(data, group, groups), data
        self.step, self.batches, self.rest = -1, [], iter(())

    def of(self, step: int) -> list:
        """Return the ACCUMULATE batches of a step."""
        if step != self.step:
            per_epoch = len(self.sampler) // BATCH // ACCUMULATE  # steps
            if step != self.step + 1 or step % per_epoch == 0:
                self.sampler.set_epoch(step // per_epoch)
                order = list(BatchSampler(self.sampler, BATCH, drop_last=True))[step % per_epoch * ACCUMULATE :]
                self.rest = iter(DataLoader(self.data, batch_sampler=order, num_workers=1))
            self.step, self.batches = step, [next(self.rest) for _ in range(ACCUMULATE)]
        return self.batches


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--patience", type=int, default=200, help="steps without a better loss")
    p.add_argument("--scaler", action="store_true", help="scale the loss, as float16 needs it")
    args = p.parse_args()
    torch.manual_seed(0)
    x = torch.randn(4096, 8)
    batches = Batches(TensorDataset(x, x.mean(1, keepdim=True)))
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-2)
    parts = {
        "model": model, "adamw": adamw, "schedule": torch.optim.lr_scheduler.CosineAnnealingLR(adamw, args.steps),
        "ema": AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99)),
        "scaler": torch.amp.GradScaler("cpu", enabled=args.scaler),
    }  # fmt: skip
    best = {"loss": float("inf"), "step": 0}

    def state_dict() -> dict:
        return {**{name: part.state_dict() for name, part in parts.items()}, "best": dict(best)}

    def load_state_dict(state: dict) -> None:
        for name, part in parts.items():
            part.load_state_dict(state[name])
        best.update(state["best"])

    manager = Manager(
        ProcessGroupGloo(), load_state_dict, state_dict, min_replica_size=1,
        vote_in_backward=not args.scaler,  # a scaler skips steps after backward
    )  # fmt: skip
    ddp, optimizer, scaler = DistributedDataParallel(manager, model), Optimizer(manager, adamw), parts["scaler"]
    with Leaving(manager) as leaving:  # after SIGTERM the group leaves at the next boundary, with exit code 143
        while (step := manager.current_step()) < args.steps and not leaving.requested():
            if step - best["step"] > args.patience:
                break  # all groups stop early at the same step, since they know the same best loss
            optimizer.zero_grad()
            step = manager.current_step()  # a group that comes back knows its step only now
            total = torch.zeros(())
            for left, (inputs, targets) in zip(range(ACCUMULATE)[::-1], batches.of(step), strict=True):
                with ddp.no_sync() if left else nullcontext():  # the last backward averages the sum
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = nn.functional.mse_loss(ddp(inputs), targets) / ACCUMULATE
                    total += loss.detach()
                    work = None if left else manager.allreduce(total)  # before the last backward ends
                    scaler.scale(loss).backward()
            work.wait()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # the average is clipped, alike in all groups
            scaler.step(optimizer)
            scaler.update()
            if manager.current_step() == step:
                continue  # the step was dropped, or skipped by the scaler: nothing has changed, and it is run again
            parts["schedule"].step()
            parts["ema"].update_parameters(model)
            if total.item() < best["loss"]:
                best.update(loss=total.item(), step=step)
            if step % 50 == 0:
                print(f"step {step}: loss {total.item():.4f}", flush=True)
    digest = sum(float(w.detach().double().sum()) for w in [*parts["ema"].module.parameters(), *model.parameters()])
    print(f"done at step {manager.current_step()}: sum of the weights {digest:.12f}, best {best}", flush=True)


if __name__ == "__main__":
    main()
