"""Training script of ``torchft_x demo``: a regression that any of several groups may leave and rejoin.

Copy it to begin a script of your own.
"""

import argparse
import time

import torch

import torchft_x


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pace", type=float, default=0.04, help="seconds; no step is shorter, so that one can watch")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def state_dict() -> dict[str, object]:
        return {"model": model.state_dict(), "optim": adamw.state_dict()}

    def load_state_dict(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        adamw.load_state_dict(state["optim"])

    manager = torchft_x.Manager(
        pg=torchft_x.ProcessGroupGloo(), min_replica_size=1, state_dict=state_dict, load_state_dict=load_state_dict
    )
    ddp = torchft_x.DistributedDataParallel(manager, model)
    optimizer = torchft_x.Optimizer(manager, adamw)
    log = torchft_x.StepLog(manager, every=20, last=args.steps)
    while (step := manager.current_step()) < args.steps:
        began = time.monotonic()
        optimizer.zero_grad()
        group = manager.participating_rank() or 0  # each group has its own batch of the step
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1000 * step + group))
        loss = torch.nn.functional.mse_loss(ddp(x), x.sin().sum(1, keepdim=True))
        loss.backward()  # averages the gradients over the groups
        optimizer.step()  # commits, or changes nothing and the loop tries the step again
        if optimizer.committed:
            log.step(manager.current_step(), loss, tokens=len(x))
        time.sleep(max(0.0, began + args.pace - time.monotonic()))
    log.close()
    manager.shutdown()


if __name__ == "__main__":
    main()
