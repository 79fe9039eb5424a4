"""Data sets whose samples say what was loaded, where, and with which random numbers."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import torch

from tests.torch.train.elastic.ledger import LedgerTrainer
from torchft_x.train.elastic.loader import ElasticLoader
from torchft_x.train.elastic.sampler import ElasticSampler, Micro, Sample


class Drawn:
    """Data set of (index, process, random numbers of Python, NumPy and torch). Writes each index loaded into `log`."""

    def __init__(self, length: int, log: Path | None = None, bad: int = -1) -> None:
        self.length, self.log, self.bad = length, log, bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int, list[float]]:
        import numpy as np

        if self.log is not None:
            with self.log.open("a") as f:
                f.write(f"{os.getpid()} {index}\n")
        if index == self.bad:
            raise KeyError(f"sample {index} can't be read")
        return index, os.getpid(), [random.random(), float(np.random.random()), float(torch.rand(()))]


class Fetched(Drawn):
    """`Drawn` that loads a batch in one call."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [("together", *self[i]) for i in indices]


def plain(batch: list[Any]) -> list[Any]:
    """Return the batch as it is: a collate function that processes can be given."""
    return batch


def run_of(start: int, count: int, epoch: int = 0) -> list[Sample]:
    """Return a batch of samples in the order of the data set."""
    return [Sample(epoch, i, i) for i in range(start, start + count)]


class LoaderTrainer(LedgerTrainer):
    """Trains a `Ledger` with an `ElasticLoader` whose batches are the indices, and checks that they are the right ones."""

    def make_data(self, length: int, dealing: dict[str, Any]) -> ElasticSampler:
        self.loader = ElasticLoader(self.manager, dealing.pop("dataset", range(length)), **dealing)
        return self.loader

    def compute(self, micro: Micro) -> torch.Tensor:
        assert micro.batch.tolist() == micro.indices
        return super().compute(micro)
