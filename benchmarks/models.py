"""The two models every figure is about. Needs only torch: both libraries' Pythons run it."""

import torch
from torch import nn

from benchmarks import SMALL


def make(size: str) -> tuple[nn.Module, torch.Tensor]:
    """The model and one batch. small: 85,002 parameters; large: 25.2 million."""
    if size == SMALL:
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
        return model, torch.randn(16, 64)
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(2048, 2048), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), torch.randn(32, 2048)


def loss_of(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return module(batch).square().mean()
