"""Scripts that use the loop over a step's data in another way than documented: no sample is lost or counted twice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.torch.train.elastic.ledger import LedgerTrainer
from tests.torch.train.jobs import leave, lighthouse
from torchft_x.errors import ConfigError, StepError
from torchft_x.train.elastic.sampler import Micro

FOUR: dict[str, Any] = {"global_batch": 8, "micro_batch": 2}


@contextlib.contextmanager
def one_group(**kwargs: Any) -> Iterator[LedgerTrainer]:
    with lighthouse(1) as address:
        trainer = LedgerTrainer(0, address, 16, 2, FOUR, **kwargs)
        yield trainer
        leave(trainer)


def backward(trainer: LedgerTrainer, micro: Micro) -> None:
    trainer.model([(s.epoch, s.index) for s in micro.samples]).backward()


def finish(trainer: LedgerTrainer) -> bool:
    trainer.optimizer.step()
    return bool(trainer.optimizer.committed)


@pytest.mark.parametrize("last", [0, 1, 3])
@pytest.mark.parametrize("early", [True, False])
def test_a_loop_that_is_left_before_a_backward_commits_nothing(last: int, early: bool) -> None:
    with one_group(vote_in_backward=early) as trainer:
        trainer.optimizer.zero_grad()
        for i, micro in enumerate(trainer.data.step()):
            if i == last:
                break
            backward(trainer, micro)
        assert not finish(trainer)
        assert trainer.counts.sum() == 0
        trainer.train().check()


def test_a_loop_in_no_sync_commits_nothing() -> None:
    with one_group() as trainer:
        trainer.optimizer.zero_grad()
        with trainer.model.no_sync():
            for micro in trainer.data.step():
                backward(trainer, micro)
        assert not finish(trainer)
        trainer.train().check()


def test_a_second_loop_in_a_step_is_refused() -> None:
    with one_group() as trainer:
        trainer.optimizer.zero_grad()
        for micro in trainer.data.step():
            backward(trainer, micro)
        with pytest.raises(StepError, match="zero_grad"):
            next(trainer.data.step())
        assert finish(trainer)
        trainer.train().check()


@pytest.mark.parametrize("early", [True, False])
def test_a_step_with_data_of_the_script_s_own_ends_the_training_with_a_sentence(early: bool) -> None:
    with one_group(vote_in_backward=early) as trainer:
        trainer.optimizer.zero_grad()
        trainer.model([(0, 0)]).backward()
        with pytest.raises(ConfigError, match=r"step\(\)"):
            finish(trainer)
        assert trainer.counts.sum() == 0


def test_an_iterator_of_a_step_that_is_over_yields_nothing_more() -> None:
    with one_group() as trainer:
        trainer.optimizer.zero_grad()
        old = trainer.data.step()
        next(old)
        trainer.optimizer.zero_grad()
        with pytest.raises(StepError, match="step"):
            next(old)
        trainer.train().check()


def test_a_backward_that_fails_and_a_script_that_goes_on_lose_no_sample() -> None:
    with one_group() as trainer:
        for _ in range(2):
            try:
                trainer.optimizer.zero_grad()
                for i, micro in enumerate(trainer.data.step()):
                    if i == 3:
                        raise torch.OutOfMemoryError
                    backward(trainer, micro)
            except torch.OutOfMemoryError:
                continue
        trainer.train().check()


def test_two_backwards_through_the_same_parameters_are_refused() -> None:
    """The second pass would average once more what the first has averaged already, with the factor of slots."""
    with one_group() as trainer:
        trainer.optimizer.zero_grad()
        for micro in trainer.data.step():
            backward(trainer, micro)
            backward(trainer, micro)
        with pytest.raises(ConfigError, match="backward"):
            finish(trainer)
        assert trainer.counts.sum() == 0


def test_zero_grad_after_the_loop_is_named() -> None:
    with one_group() as trainer:
        with pytest.raises(StepError, match="zero_grad"):
            next(trainer.data.step())
        trainer.optimizer.zero_grad()
        for micro in trainer.data.step():
            backward(trainer, micro)
        trainer.optimizer.zero_grad()
        assert not finish(trainer)
        trainer.train().check()
