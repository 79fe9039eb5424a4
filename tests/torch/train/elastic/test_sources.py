"""`ElasticLoader` takes data sets of torch, Hugging Face (Arrow) and Grain, and memory maps; each sample is trained once."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from tests.torch.train.elastic.ledger import LedgerTrainer
from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import leave, lighthouse
from torchft_x.train.elastic.loader import ElasticLoader
from torchft_x.train.elastic.sampler import ElasticSampler, Micro

LENGTH = 22
Source = tuple[Any, Callable[[Any], list[int]]]
"""A data set whose sample i holds the number i, and a function that returns the numbers in a batch."""


def torch_dataset(folder: Path) -> Source:
    backward = TensorDataset(torch.arange(LENGTH).flip(0))
    parts = [Subset(backward, range(LENGTH - 1, 11, -1)), Subset(backward, range(11, -1, -1))]
    return ConcatDataset(parts), lambda batch: batch[0].tolist()


def arrow(folder: Path) -> Source:
    """Data set in files of Arrow, which loads a batch in one call (``__getitems__``)."""
    import datasets

    datasets.Dataset.from_dict({"number": list(range(LENGTH))}).save_to_disk(folder / "arrow", num_shards=2)
    return datasets.load_from_disk(folder / "arrow").with_format("torch"), lambda batch: batch["number"].tolist()


def grain(folder: Path) -> Source:
    import grain as library

    return library.MapDataset.range(LENGTH).map(lambda i: {"number": i}), lambda batch: batch["number"].tolist()


def numpy_map(folder: Path) -> Source:
    import numpy

    rows = numpy.memmap(folder / "rows", dtype="int64", mode="w+", shape=(LENGTH, 3))
    rows[:] = numpy.arange(LENGTH)[:, None]
    rows.flush()
    found = numpy.memmap(folder / "rows", dtype="int64", mode="r", shape=(LENGTH, 3))
    return found, lambda batch: batch[:, 2].tolist()


def torch_map(folder: Path) -> Source:
    rows = torch.from_file(str(folder / "rows"), shared=True, size=LENGTH, dtype=torch.int64)
    rows.copy_(torch.arange(LENGTH))
    return rows, lambda batch: batch.tolist()


SOURCES = [torch_dataset, torch_map]
SOURCES += [
    make
    for package, make in {"datasets": arrow, "grain": grain, "numpy": numpy_map}.items()
    if importlib.util.find_spec(package)
]
"""Those whose packages are here. tests/extended/train/test_sources.py has them all."""


class SourceTrainer(LedgerTrainer):
    """Trains a `Ledger` on a source, and checks that each batch holds the samples that were dealt."""

    def make_data(self, length: int, dealing: dict[str, Any]) -> ElasticSampler:
        dataset, self.numbers = dealing.pop("source")
        return ElasticLoader(self.manager, dataset, **dealing)

    def compute(self, micro: Micro) -> torch.Tensor:
        assert self.numbers(micro.batch) == micro.indices
        return super().compute(micro)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("make", SOURCES)
def test_each_sample_once(make: Callable[[Path], Source], workers: int, tmp_path: Path) -> None:
    source = make(tmp_path)
    dealing = {"source": source, "global_batch": 6, "micro_batch": 2, "num_workers": workers}
    with lighthouse(2) as address:
        trainers = run_threads(2, lambda g: SourceTrainer(g, address, LENGTH, 2, dealing, min_replica_size=2))
        for trainer in run_threads(2, lambda g: trainers[g].train()):
            trainer.check()
        for trainer in trainers:
            trainer.data.close()  # type: ignore[attr-defined]
        leave(*trainers)
