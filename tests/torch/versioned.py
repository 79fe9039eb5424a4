"""A module whose state dict has versions."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Turned(nn.Module):
    """A linear layer. From version 2 on its state dict stores the weight transposed."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def _load_from_state_dict(self, state: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        if (local_metadata.get("version") or 1) < 2:
            state[prefix + "weight"] = state[prefix + "weight"].t().clone()
        super()._load_from_state_dict(state, prefix, local_metadata, *rest)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight
