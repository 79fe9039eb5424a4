"""Sources that `ElasticLoader` takes. Arrow of Hugging Face: tests/extended/compat/test_sources.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from tests.torch.train.elastic.samples import run_of
from torchft_x.train.elastic.prefetch import Prefetch


def test_a_memory_map(tmp_path: Path) -> None:
    tokens = np.arange(40, dtype=np.uint16)
    tokens.tofile(tmp_path / "tokens.bin")
    source = np.memmap(tmp_path / "tokens.bin", dtype=np.uint16, mode="r").reshape(10, 4)

    def collate(rows: list[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.stack(rows).astype(np.int64))

    batch = Prefetch(source, 0, collate, 0, {}).get(run_of(3, 2), [])
    assert batch.tolist() == tokens[12:20].reshape(2, 4).tolist()


def test_torch_s_data_sets() -> None:
    pairs = TensorDataset(torch.arange(10), torch.arange(10) * 2)
    x, y = Prefetch(pairs, 0, None, 0, {}).get(run_of(3, 2), [])
    assert (x.tolist(), y.tolist()) == ([3, 4], [6, 8])
    x, _ = Prefetch(Subset(pairs, [9, 8, 7]), 0, None, 0, {}).get(run_of(1, 2), [])
    assert x.tolist() == [8, 7]
