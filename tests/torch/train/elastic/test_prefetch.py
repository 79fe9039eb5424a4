"""Batches that the training process loads itself."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.torch.train.elastic.samples import Drawn, Fetched, plain, run_of
from torchft_x.errors import ConfigError, StepError
from torchft_x.train.elastic.prefetch import Prefetch


def loader(dataset: Any = None, collate: Any = plain, **options: Any) -> Prefetch:
    return Prefetch(dataset or Drawn(100), 7, collate, 0, options)


def test_random_numbers_belong_to_the_sample_and_the_process_s_own_stay() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = random.random(), float(np.random.random()), float(torch.rand(()))
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    first = loader().get(run_of(10, 4), [])
    again = loader().get(run_of(8, 8), [])
    other = loader().get(run_of(10, 4, epoch=1), [])
    assert first == again[2:6]
    assert all(a[2] != b[2] for a, b in zip(first, other, strict=True))
    assert (random.random(), float(np.random.random()), float(torch.rand(()))) == expected


def test_a_data_set_that_fetches_batches_is_seeded_once_for_each() -> None:
    first = loader(Fetched(100)).get(run_of(10, 4), [])
    assert [s[:2] for s in first] == [("together", i) for i in range(10, 14)]
    assert loader(Fetched(100)).get(run_of(10, 4), []) == first


def test_torch_s_collate_function_is_the_default() -> None:
    indices, _, numbers = loader(collate=None).get(run_of(3, 2), [])
    assert indices.tolist() == [3, 4]
    assert [n.dtype for n in numbers] == [torch.float64] * 3


def test_the_error_of_the_data_set_is_the_caller_s_and_the_next_batch_is_right() -> None:
    prefetch = loader(Drawn(100, bad=11))
    with pytest.raises(KeyError, match="sample 11"):
        prefetch.get(run_of(10, 2), [])
    assert [s[0] for s in prefetch.get(run_of(12, 2), [])] == [12, 13]


def test_only_what_is_wanted_is_loaded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    prefetch = loader(Drawn(100, log))
    prefetch.get(run_of(10, 2), [run_of(12, 2)])
    assert [line.split()[1] for line in log.read_text().splitlines()] == ["10", "11"]


def test_options_go_to_torch() -> None:
    prefetch = loader(collate=None, pin_memory=True)
    assert prefetch._loader is not None
    assert prefetch._loader.pin_memory
    with pytest.raises(TypeError, match="no_such"):
        loader(no_such=1)
    with pytest.raises(ConfigError, match="in_order"):
        loader(in_order=False)


def test_a_closed_loader_says_so() -> None:
    prefetch = loader()
    prefetch.close()
    with pytest.raises(StepError, match="closed"):
        prefetch.get(run_of(0, 1), [])
