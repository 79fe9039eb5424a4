"""Loads the samples of each step beside the training, with torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from torchft_x.train.elastic.prefetch import Prefetch
from torchft_x.train.elastic.sampler import ElasticSampler, Micro, Sample
from torchft_x.train.step.step_data import DealtInnerStep, DealtStep

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager


class ElasticLoader(ElasticSampler):
    """Loads each step's samples, so that each is committed exactly once per epoch.

    ::

        data = ElasticLoader(manager, dataset, global_batch=512, micro_batch=8, num_workers=4)
        while data.epoch < epochs:
            optimizer.zero_grad()
            for micro in data.step():
                loss_fn(ddp(micro.x), micro.y).backward()
            optimizer.step()

    Workers load ahead what this group computes if no group is lost or joins. A random augmentation draws the same numbers
    whichever group, worker or attempt loads the sample: before each sample the generators of Python, NumPy and torch are
    seeded by (seed, epoch, position). A data set with ``__getitems__`` is seeded once for a micro batch, by its first
    sample. Other generators, such as NumPy's `default_rng`, are the data set's own to seed.

    Args:
        manager: this rank's Manager.
        dataset: anything with ``len()`` and ``[i]``: a dataset of torch, Arrow of Hugging Face, Grain, a memory map.
        collate_fn: makes a batch of a list of samples; torch's default if None.
        num_workers: processes that load; 0: the training process loads.
        loader: further arguments of torch's DataLoader, such as pin_memory, prefetch_factor, multiprocessing_context.
        dealing: arguments of `ElasticSampler`.

    Raises:
        ConfigError: sizes that don't fit, a second loader, or in_order=False.
    """

    def __init__(
        self,
        manager: Manager,
        dataset: Any,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        loader: dict[str, Any] | None = None,
        **dealing: Any,
    ) -> None:
        super().__init__(manager, len(dataset), **dealing)
        self._prefetch = Prefetch(dataset, self._seed, collate_fn, num_workers, loader or {})
        self._spared: Any = None  # batch for steps in which this group contributes nothing

    def step(self) -> Iterator[Micro]:
        """Yield the micro batches of the step that ``zero_grad()`` has started, with their data.

        Raises the errors of `Manager.wait_quorum` and of the data set, and `StepError` before the first step.
        """
        dealt = None
        for i, micro in enumerate(super().step()):
            if self._manager.steps.data.slot is None:
                if self._spared is None:  # workers start with it: in a rehearsal no other group waits for that
                    self._spared = self._prefetch.get(micro.samples, repeat(micro.samples))
                yield replace(micro, batch=self._spared)
                continue
            dealt = dealt or self._manager.steps.data.dealt
            assert dealt is not None, "the sampler has got it"
            following = self._following(dealt, i + 1)
            yield replace(micro, batch=self._prefetch.get(micro.samples, following))

    def _following(self, dealt: DealtStep | DealtInnerStep, done: int) -> Iterator[list[Sample]]:
        """Yield the samples of what this group will probably compute after the first `done` slots of a step."""
        rest = ((dealt.data, slot) for slot in dealt.slots[done:])
        return (self.micro(data, dealt.options, slot).samples for data, slot in chain(rest, dealt.upcoming()))

    def close(self) -> None:
        """End the workers. The loader can't be used any more."""
        self._prefetch.close()
