"""Mistakes with dealt data: each is refused with one sentence, before it could train a sample twice or not at all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.torch.train.elastic.ledger import LedgerTrainer
from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import Trainer, leave, lighthouse
from torchft_x.core.data.state import DataState
from torchft_x.errors import ConfigError, RefusedError
from torchft_x.train.elastic.loader import ElasticLoader
from torchft_x.train.elastic.sampler import ElasticSampler

DEALING: dict[str, Any] = {"global_batch": 4, "micro_batch": 2, "digest": "a1"}


@pytest.mark.parametrize(
    ("length", "other", "sentence"),
    [
        (
            None,
            {},
            r"its data order has no ElasticLoader where group_0's has seed 0 \(chosen by the script; group_0's 30 ",
        ),
        (31, {}, r"its data order is 31 samples, 2 slots of 2 where group_0's is 30 samples, 2 slots of 2"),
        (30, {"digest": "b2"}, r"its data order has digest b2 where group_0's has digest a1"),
        (30, {"global_batch": 6}, r"its data order is 30 samples, 3 slots of 2 where"),
        (30, {"seed": 1}, r"its data order has seed 1 where group_0's has seed 0"),
        (30, {"tail": "drop"}, r"its data order has tail drop where group_0's has tail wrap"),
    ],
)
def test_a_group_with_another_order_of_samples_is_refused(
    length: int | None, other: dict[str, Any], sentence: str
) -> None:
    with lighthouse() as address:
        first = Trainer(0, address)
        data = ElasticSampler(first.manager, 30, **DEALING)
        first.optimizer.zero_grad()
        next(data.step())
        second = Trainer(1, address)
        if length is not None:
            ElasticSampler(second.manager, length, **DEALING | other)
        with pytest.raises(RefusedError, match=sentence):
            second.optimizer.zero_grad()
        leave(first, second)


@pytest.mark.parametrize("loader_first", [True, False])
@pytest.mark.parametrize(
    ("saved", "what"),
    [
        (DataState(0, 40, "a1", 1, 8), "samples 40 there, 30 here"),
        (DataState(0, 30, "b2", 1, 8), "the digest 'b2' there, 'a1' here"),
        (DataState(7, 30, "a1", 1, 8), "the seed 7 there, 0 here"),
    ],
)
def test_a_position_in_another_data_set_is_refused(saved: DataState, what: str, loader_first: bool) -> None:
    """Whether the checkpoint or the sampler comes first."""
    with lighthouse() as address:
        trainer = Trainer(0, address)
        steps: list[Callable[[], Any]] = [
            lambda: ElasticSampler(trainer.manager, 30, **DEALING),
            lambda: trainer.manager.load_state_dict({"step": 9, "batches_committed": 9, "data": saved.to_json()}),
        ]
        one, two = steps if loader_first else reversed(steps)
        one()
        with pytest.raises(ConfigError, match=f"{what}; resume with the data set and seed of the saved run"):
            two()
        leave(trainer)


@pytest.mark.parametrize("loader_first", [True, False])
def test_a_position_goes_on_with_another_global_batch(loader_first: bool) -> None:
    saved = DataState(0, 30, "a1", 1, 8, ((0, 3, 5),))
    with lighthouse() as address:
        trainer = Trainer(0, address)
        state = {"step": 9, "batches_committed": 9, "data": saved.to_json()}
        if not loader_first:
            trainer.manager.load_state_dict(state)
        sampler = ElasticSampler(trainer.manager, 30, **DEALING | {"global_batch": 12})
        if loader_first:
            trainer.manager.load_state_dict(state)
        assert sampler.position == saved
        assert sampler.epoch == 0  # two of its samples are not committed
        leave(trainer)


def test_a_group_without_slots_is_warned_once_in_a_quorum(caplog: pytest.LogCaptureFixture) -> None:
    with lighthouse(3) as address, caplog.at_level(logging.WARNING, "torchft_x.train.manager"):
        trainers = run_threads(3, lambda g: LedgerTrainer(g, address, 30, 2, DEALING))
        run_threads(3, lambda g: [trainers[g].one_step() for _ in range(4)])
        warned = [r.getMessage() for r in caplog.records if "contributes nothing" in r.getMessage()]
        assert len(warned) == 1
        assert "a step has 2 slots, which 3 groups share" in warned[0]
        assert trainers[0].counts.sum() == 4 * 4
        leave(*trainers)


@pytest.mark.parametrize("micros", [0, 1])
def test_a_step_that_ends_before_the_loop_over_its_data_has_ended_is_dropped(micros: int) -> None:
    with lighthouse() as address:
        trainer = LedgerTrainer(0, address, 30, 2, DEALING)
        assert trainer.one_step()
        before = trainer.data.position
        trainer.optimizer.zero_grad()
        step = trainer.data.step()
        for _ in range(micros):
            trainer.model([(s.epoch, s.index) for s in next(step).samples]).backward()
        assert not trainer.manager.should_commit()
        assert "is ended before the loop over step()" in str(trainer.manager.errored())
        assert trainer.data.position == before
        trainer.train().check()
        leave(trainer)


def test_a_manager_takes_one_loader_before_its_first_step() -> None:
    sentence = "takes one ElasticLoader, Sampler or Streams, made before the first step"
    with lighthouse() as address:
        trainer = Trainer(0, address)
        ElasticSampler(trainer.manager, 30, **DEALING)
        with pytest.raises(ConfigError, match=sentence):
            ElasticLoader(trainer.manager, range(30), **DEALING)
        leave(trainer)
        late = Trainer(1, address)
        assert late.step()
        with pytest.raises(ConfigError, match=sentence):
            ElasticSampler(late.manager, 30, **DEALING)
        leave(late)


@pytest.mark.parametrize(
    ("length", "other", "sentence"),
    [
        (30, {"ranks": 4}, "micro_batch 2 can't be divided among the 4 ranks of a group; choose a multiple of 4"),
        (30, {"rank": 2, "ranks": 2}, "rank 2 is not among the 2 ranks that share a slot"),
        (30, {"global_batch": 5}, "global_batch 5 is no multiple of micro_batch 2"),
        (30, {"global_batch": None}, "policy 'constant' needs a global_batch"),
        (30, {"policy": "shrink"}, "policy 'shrink' takes no global_batch"),
        (30, {"policy": "exact"}, "policy is 'exact'; choose one of shrink, constant, strict"),
        (30, {"tail": "keep"}, "tail is 'keep'; choose one of wrap, short, drop"),
        (0, {}, "0 samples, micro_batch 2, ranks 1, weight 1: each is at least 1"),
        (3, {"tail": "drop"}, "3 samples don't fill one step of 4, so tail 'drop' would leave out all"),
        (31, {"tail": "short", "ranks": 2}, "a number of samples that can be divided by 2 ranks, not 31"),
    ],
)
def test_sizes_that_do_not_fit(length: int, other: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ElasticSampler(None, length, **DEALING | other)  # type: ignore[arg-type]


def test_a_saved_position_that_is_none_is_refused() -> None:
    for text in (
        "",
        "{}",
        "[]",
        DataState(0, 30).to_json().replace("30", "-1"),
        replace(DataState(0, 3), cursor=4).to_json(),
    ):
        with pytest.raises(ConfigError):
            DataState.from_json(text)
