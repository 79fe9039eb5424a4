"""Training loop with the features of real loops. docs/write_a_script.md, "Recipes", explains the place of each line.

Alone: `python recipes.py`. In groups: torchx run -s local_cwd ./components.py:ddp --script docs/examples/recipes.py
"""

import argparse

import torch
from torch.nn import Linear, Sequential, Tanh
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

import torchft_x as ft


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=500)
    p.add_argument("--patience", type=int, default=100, help="steps without a better validation loss")
    p.add_argument("--scaler", action="store_true", help="scale the loss, as float16 needs it")
    args = p.parse_args()
    torch.manual_seed(0)
    x = torch.randn(5000, 8)
    y = x.mean(1, keepdim=True) + 0.1 * torch.randn(5000, 1)
    model = Sequential(Linear(8, 32), Tanh(), Linear(32, 1))
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adamw, args.steps)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    scaler = torch.amp.GradScaler("cpu", enabled=args.scaler)
    parts = {"model": model, "adamw": adamw, "schedule": schedule, "ema": ema, "scaler": scaler}
    best = {"loss": float("inf"), "step": 0}

    def load_state_dict(state: dict) -> None:
        for name, part in parts.items():
            part.load_state_dict(state[name])
        best.update(state["best"])

    manager = ft.Manager(
        ft.ProcessGroupGloo(), load_state_dict, lambda: {**{k: v.state_dict() for k, v in parts.items()}, "best": best},
        min_replica_size=1, vote_in_backward=not args.scaler,  # a scaler skips steps after backward
    )  # fmt: skip
    ddp, optimizer = ft.DistributedDataParallel(manager, model), ft.Optimizer(manager, adamw)
    data = ft.ElasticLoader(manager, TensorDataset(x[:4096], y[:4096]), global_batch=64, micro_batch=16, num_workers=1)
    evaluation = ft.ElasticEvaluator(manager, len(x) - 4096, batch=128, every=25)

    @torch.no_grad()
    def losses(batches: list[list[int]]) -> list[torch.Tensor]:
        return [mse_loss(ema(x[4096:][b]), y[4096:][b], reduction="sum") / (len(x) - 4096) for b in batches]

    with ft.Leaving(manager) as leaving:  # after SIGTERM the group leaves at the next boundary, with exit code 143
        while manager.current_step() < args.steps and not leaving.requested():
            if evaluation.step - best["step"] >= args.patience:
                break  # all groups stop early at the same step, since they know the same losses
            optimizer.zero_grad()
            if evaluation.due():
                if evaluation.run(losses) and evaluation.sums[0] < best["loss"]:
                    best.update(loss=evaluation.sums[0], step=evaluation.step)
                continue
            step = manager.current_step()  # a group that comes back knows its step only now
            for micro in data.step():  # this group's micro batches; the last backward averages the sum of all
                with torch.autocast("cpu", torch.bfloat16):
                    loss = mse_loss(ddp(micro.x), micro.y)
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # the average is clipped, alike in all groups
            scaler.step(optimizer)
            scaler.update()
            if manager.current_step() == step:
                continue  # the step was dropped, or skipped by the scaler: nothing has changed, and it is run again
            schedule.step()
            ema.update_parameters(model)
    data.close()
    digest = sum(float(w.detach().double().sum()) for w in [*ema.parameters(), *model.parameters()])
    print(f"done at step {manager.current_step()}: sum of the weights {digest:.12f}, best {best}", flush=True)


if __name__ == "__main__":
    main()
