"""SGD for the scripts of tests.

Any optimizer of torch imports `torch._dynamo` at its first use, which takes longer than the rest of such a script's
start. The packaged scripts use torch's optimizers, so that these are tested, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class PlainSGD:
    """Optimizer with the methods that `torchft_x.Optimizer` and a state dict need."""

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float, momentum: float = 0.0) -> None:
        self.param_groups = [{"params": list(params), "lr": lr, "momentum": momentum}]
        self.velocity: dict[int, torch.Tensor] = {}  # index of the parameter -> accumulated momentum

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self.param_groups[0]["params"]:
            p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        group = self.param_groups[0]
        for i, p in enumerate(group["params"]):
            if p.grad is None:
                continue
            change = p.grad
            if group["momentum"]:
                before = self.velocity.get(i)
                change = self.velocity[i] = p.grad.clone() if before is None else before * group["momentum"] + p.grad
            p.sub_(change, alpha=group["lr"])

    def state_dict(self) -> dict[str, Any]:
        return {"velocity": dict(self.velocity), "lr": self.param_groups[0]["lr"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.velocity = {i: v.clone() for i, v in state["velocity"].items()}
        self.param_groups[0]["lr"] = state["lr"]
