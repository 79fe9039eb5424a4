"""Loads predicted batches ahead, and keeps those that were not the next ones."""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader

from torchft_x.errors import ConfigError, StepError
from torchft_x.train.elastic.sampler import Sample

Key = tuple[Sample, ...]


class Prefetch:
    """Batches of a data set by their samples. Used by the training thread.

    Args:
        dataset: has ``[i]``; ``__getitems__`` is used if it has one.
        seed: seed of the random generators, with epoch and position of a sample.
        collate_fn: makes a batch of samples; torch's default if None.
        workers: number of processes that load; 0: `get` loads.
        options: further arguments of torch's DataLoader.

    Raises:
        ConfigError: workers may return batches in another order than that in which they were asked for.
    """

    def __init__(
        self,
        dataset: Any,
        seed: int,
        collate_fn: Callable[[list[Any]], Any] | None,
        workers: int,
        options: dict[str, Any],
    ) -> None:
        if not options.get("in_order", True):
            raise ConfigError("in_order=False: each batch must be the one that was asked for; leave the argument out.")
        self._predicted: Iterator[list[Sample]] = iter(())  # batches to send to workers, the next one first
        self._sent: deque[Key] = deque()  # batches that workers load, in the order in which they come back
        self._stash: dict[Key, Any] = {}  # batches that came and were not wanted at that moment, oldest first
        self._batches: Iterator[Any] | None = None  # the DataLoader's; None before the first batch
        self._loader: DataLoader[Any] | None = DataLoader(
            _Seeded(dataset, seed), batch_sampler=_Predictions(self._predict), collate_fn=collate_fn, num_workers=workers,
            generator=torch.Generator().manual_seed(seed), **options,
        )  # fmt: skip
        self._workers = workers
        self._most = 4 * workers * (self._loader.prefetch_factor or 0)  # batches in the stash

    def get(self, samples: list[Sample], following: Iterable[list[Sample]]) -> Any:
        """Return the batch of these samples. `following`: those that will probably be wanted next, in order.

        Raises the data set's error. Raises `StepError` after `close`.
        """
        if self._loader is None:
            raise StepError("this loader is closed; make its Manager and loader anew.")
        if not self._workers:
            self._predicted = iter([samples])
            self._sent.clear()
            with _own_random_state():
                return next(iter(self._loader))
        key = tuple(samples)
        if key in self._stash:
            return self._stash.pop(key)
        if key not in self._sent:
            self._predicted = chain([samples], following)
        while True:
            if self._batches is None:
                self._predicted = chain([samples], following)
                self._sent.clear()
                self._batches = iter(self._loader)
            try:
                batch = next(self._batches)
            except StopIteration:  # nothing was predicted for a while
                self._batches = None
                continue
            except Exception as e:
                # Torch's frames hold its iterator in a cycle, whose collection takes 5 s for each worker.
                traceback.clear_frames(e.__traceback__)
                # torch does not tell whether its workers still live. New ones keep batches and `_sent` in step.
                self._batches = None
                if not self._sent or self._sent[0] == key:
                    raise
                continue
            came = self._sent.popleft()
            if came == key:
                return batch
            self._stash[came] = batch
            if len(self._stash) > self._most:
                del self._stash[next(iter(self._stash))]

    def _predict(self) -> list[Sample]:
        """Return the next batch to load, without those that are loaded already."""
        for _ in range(len(self._sent) + len(self._stash) + 1):
            samples = next(self._predicted)
            key = tuple(samples)
            if key not in self._stash and key not in self._sent:
                break
        self._sent.append(key)
        return samples

    def close(self) -> None:
        """End the workers."""
        self._batches = self._loader = None
        self._stash.clear()
        self._sent.clear()


class _Predictions:
    """Batch sampler of the DataLoader. It asks for a batch when a worker is free."""

    def __init__(self, predict: Callable[[], list[Sample]]) -> None:
        self._predict = predict

    def __iter__(self) -> Iterator[list[Sample]]:
        return self

    def __next__(self) -> list[Sample]:
        return self._predict()


class _Seeded:
    """Data set that seeds the process's random generators before each sample."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitems__(self, samples: list[Sample]) -> list[Any]:
        fetch = getattr(self._dataset, "__getitems__", None)
        if fetch is not None:
            _seed_all(self._seed, samples[0])
            return list(fetch([s.index for s in samples]))
        return [self[s] for s in samples]

    def __getitem__(self, sample: Sample) -> Any:
        _seed_all(self._seed, sample)
        return self._dataset[sample.index]

    def __len__(self) -> int:
        return len(self._dataset)


def _seed_all(seed: int, sample: Sample) -> None:
    """Seed the generators of Python, of NumPy if it is loaded, and of torch on the CPU."""
    data = f"{seed}/{sample.epoch}/{sample.position}".encode()
    value = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
    random.seed(value)
    torch.default_generator.manual_seed(value)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(value & 0xFFFFFFFF)


@contextlib.contextmanager
def _own_random_state() -> Iterator[None]:
    """Restore the random generators that `_seed_all` seeds."""
    numpy = sys.modules.get("numpy")
    states = random.getstate(), torch.get_rng_state(), numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        if numpy and states[2] is not None:
            numpy.random.set_state(states[2])
