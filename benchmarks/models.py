"""The two models every figure is about. Needs only torch: both libraries' Pythons run it."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

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


class Batches(IterableDataset):  # type: ignore[type-arg]
    """The same batch for ever; whoever reads it hangs once there is this file."""

    def __init__(self, batch: torch.Tensor, hang: Path) -> None:
        self.batch = batch
        self.hang = hang

    def __iter__(self) -> Iterator[torch.Tensor]:
        while not self.hang.exists():
            yield self.batch
        time.sleep(1e9)


def loader(batch: torch.Tensor, hang: Path) -> DataLoader:  # type: ignore[type-arg]
    """With one worker, which prepares no more than the next batch."""
    return DataLoader(Batches(batch, hang), batch_size=None, num_workers=1, prefetch_factor=1)


def compile_anew(batch: torch.Tensor) -> None:
    """Compile a model that this process has not compiled."""
    torch._dynamo.reset()
    model, _ = make(SMALL)
    with torch.no_grad():
        torch.compile(model)(batch)


def save(path: Path) -> None:
    """100 MB, forced to the disk."""
    with path.open("wb") as f:
        torch.save(torch.zeros(25_000_000), f)
        os.fsync(f.fileno())
