"""The two models of all measurements. The Pythons of both libraries run this module, which needs only torch."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from benchmarks import SMALL


def make(size: str) -> tuple[nn.Module, torch.Tensor]:
    """Return the model and one float32 batch: [16, 64] for small (85,002 parameters), [32, 2048] for large (25.2 M)."""
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
    """Endless repetition of one batch. Its reader hangs as soon as the file `hang` exists."""

    def __init__(self, batch: torch.Tensor, hang: Path) -> None:
        self.batch = batch
        self.hang = hang

    def __iter__(self) -> Iterator[torch.Tensor]:
        while not self.hang.exists():
            yield self.batch
        time.sleep(1e9)


def loader(batch: torch.Tensor, hang: Path) -> DataLoader:  # type: ignore[type-arg]
    """Return a loader with one worker, which prepares at most the next batch."""
    return DataLoader(Batches(batch, hang), batch_size=None, num_workers=1, prefetch_factor=1)


def compile_anew(batch: torch.Tensor) -> None:
    """Compile a model from scratch, after dropping all code that this process has compiled."""
    torch._dynamo.reset()
    model, _ = make(SMALL)
    with torch.no_grad():
        torch.compile(model)(batch)


def save(path: Path) -> None:
    """Write 100 MB to the file and force them to the disk."""
    with path.open("wb") as f:
        torch.save(torch.zeros(25_000_000), f)
        os.fsync(f.fileno())
