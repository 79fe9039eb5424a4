"""Evaluations over a second data set in all groups together: each sample once, with the bits of one group alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.torch.train.elastic.ledger import LedgerTrainer
from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import Trainer, leave, lighthouse, two_by_two
from tests.util import scaled
from torchft_x.errors import ConfigError, RefusedError
from torchft_x.train.elastic.evaluator import ElasticEvaluator

LENGTH = 29
Batches = list[list[int]]


def one(batch: list[int]) -> torch.Tensor:
    """Return sums over a batch: a number whose bits depend on the order of its additions, and each sample's count."""
    counts = torch.zeros(LENGTH)
    counts[batch] = 1
    return torch.cat([torch.stack([torch.tensor(0.1 + i).sin() / 3 for i in batch]).sum().reshape(1), counts])


def alone(batch: int) -> float:
    rows = [one(list(range(i, min(i + batch, LENGTH)))) for i in range(0, LENGTH, batch)]
    return sum(float(row[0]) for row in rows)


class Evaluating(LedgerTrainer):
    """Trains a `Ledger` and evaluates each 3 steps and at the end."""

    def __init__(self, group: int, address: str, batch: int = 2, every: int = 3, **kwargs: Any) -> None:
        dealing = {"global_batch": 12, "micro_batch": 2, "weight": kwargs.pop("weight", 1)}
        super().__init__(group, address, 60, 2, dealing, **kwargs)
        self.evaluation = ElasticEvaluator(self.manager, LENGTH, batch=batch, every=every)
        self.computed: list[Batches] = []  # by attempt
        self.results: dict[int, list[float]] = {}

    def evaluate(self, hook: Callable[[list[int]], None]) -> None:
        def sums(batches: Batches) -> Iterator[torch.Tensor]:
            self.computed.append(batches)
            for batch in batches:
                hook(batch)
                yield one(batch)

        before = self.counts.clone()
        if self.evaluation.run(sums):
            self.results[self.evaluation.step] = self.evaluation.sums
            assert self.evaluation.newest
        assert torch.equal(self.counts, before) or not self.manager.is_participating()

    def run(self, hook: Callable[[list[int]], None] = lambda batch: None, throws: int = -1) -> Evaluating:
        """Train to the end, and throw the step `throws` away when the groups have decided to commit it."""
        while self.data.epoch < self.epochs or not self.evaluation.newest:
            self.optimizer.zero_grad()
            if self.evaluation.due(now=self.data.epoch >= self.epochs):
                self.evaluate(hook)
                continue
            for micro in self.data.step():
                self.compute(micro).backward()
            if self.manager.current_step() == throws:
                throws = -1
                continue
            self.optimizer.step()
        return self


def check(trainers: list[Evaluating], batch: int = 2) -> None:
    results = trainers[0].results
    assert all(t.results == {step: results[step] for step in t.results} for t in trainers)
    assert list(results.values()) == [[alone(batch)] + [1.0] * LENGTH] * len(results)
    for trainer in trainers:
        trainer.check()


@pytest.mark.parametrize(("groups", "batch"), [(1, 2), (2, 2), (3, 5), (3, 20)])
def test_any_number_of_groups_finds_the_same_bits(groups: int, batch: int) -> None:
    """Three groups share two batches in the last case."""
    with lighthouse(groups) as address:
        trainers = run_threads(groups, lambda g: Evaluating(g, address, batch).run())
        check(trainers, batch)
        assert list(trainers[0].results) == [3, 6, 9, 12, 14]  # 10 steps of training
        assert sum(len(t.computed[0]) for t in trainers) == max(groups, -(-LENGTH // batch))
        leave(*trainers)


def test_a_group_with_twice_the_weight_computes_twice_as_much() -> None:
    with lighthouse(2) as address:
        trainers = run_threads(2, lambda g: Evaluating(g, address, weight=g + 1).run())
        check(trainers)
        assert sorted(len(t.computed[0]) for t in trainers) == [5, 10]
        leave(*trainers)


def test_a_group_is_lost_in_an_evaluation_and_comes_back() -> None:
    """The others compute only what is missing. The newcomer joins between evaluations, and learns the newest result."""
    meet = threading.Barrier(3)
    lost = threading.Event()

    def body(g: int) -> None:
        met = False

        def hook(batch: list[int]) -> None:
            nonlocal met
            if trainers[g].manager.current_step() == 6 and not met:
                met = True
                meet.wait(scaled(20))
                if g == 1:
                    trainers[1].manager.shutdown(finished=False)
                    lost.set()
                    raise InterruptedError
                assert lost.wait(scaled(20))

        try:
            trainers[g].run(hook)
        except InterruptedError:
            trainers.append(Evaluating(1, address))
            trainers[3].run()

    with lighthouse(3) as address:
        trainers = run_threads(3, lambda g: Evaluating(g, address))
        run_threads(3, body)
        ends = [trainers[0], trainers[2], trainers[3]]
        check(ends)
        assert 6 in trainers[0].results
        first, again = ([t.computed[i] for t in (trainers[0], trainers[2])] for i in (1, 2))
        assert all(not any(b in old for b in new) for old, new in zip(first, again, strict=True))
        assert ends[2].evaluation.sums == ends[0].evaluation.sums
        leave(*ends)


def test_a_group_that_copies_its_state_in_an_evaluation_knows_the_result() -> None:
    """It lags behind by a step and heals beside the evaluation, so only the quorum tells it that this is one."""
    with lighthouse(2) as address:
        trainers = run_threads(2, lambda g: Evaluating(g, address).run(throws=2 if g else -1))
        check(trainers)
        assert 3 in trainers[0].results
        assert 3 in trainers[1].results
        assert trainers[1].computed[0] == [[0, 1]]  # to know how many sums there are; it counts for nothing
        leave(*trainers)


def test_without_a_loader() -> None:
    """And due at step 0, where the groups take one group's weights first."""

    def attempt(g: int) -> Trainer:
        trainer = Trainer(g, address)
        evaluation = ElasticEvaluator(trainer.manager, LENGTH, batch=4)
        while trainer.manager.current_step() < 4:
            trainer.optimizer.zero_grad()
            if evaluation.due(now=trainer.manager.current_step() in (0, 3)):
                evaluation.run(lambda batches: [trainer.net(torch.ones(len(b), 6)).sum() for b in batches])
                sums.append((evaluation.step, *evaluation.sums))
            else:
                trainer.net(torch.ones(1, 6)).sum().backward()
                trainer.finish_step()
        return trainer

    sums: list[tuple[float, ...]] = []
    with lighthouse(2) as address:
        leave(*run_threads(2, attempt))
    assert len(set(sums)) == 2
    assert len(sums) == 4


def test_groups_of_two_ranks() -> None:
    """Ranks of a group get the same batches."""

    def body(i: int, trainer: Trainer) -> tuple[Batches, list[float]]:
        seen: list[Batches] = []

        def sums(batches: Batches) -> list[torch.Tensor]:
            seen.append(batches)
            return [one(batch) for batch in batches]

        evaluation = ElasticEvaluator(trainer.manager, LENGTH, batch=2, every=2)
        while trainer.manager.current_step() < 3:
            trainer.optimizer.zero_grad()
            if evaluation.due():
                evaluation.run(sums)
            else:
                trainer.model(torch.ones(1, 6)).sum().backward()
                trainer.finish_step()
        (batches,) = seen
        return batches, evaluation.sums

    with lighthouse(2) as address:
        found = two_by_two(address, body)
        assert found[0] == found[1]
        assert found[2] == found[3]
        assert found[0][1] == found[2][1] == [alone(2)] + [1.0] * LENGTH
        assert not any(batch in found[2][0] for batch in found[0][0])


def test_mistakes_are_refused() -> None:
    with lighthouse() as address:
        first = Trainer(0, address)
        with pytest.raises(ConfigError, match=r"29 samples, batch 0: each is at least 1"):
            ElasticEvaluator(first.manager, LENGTH, batch=0)
        evaluation = ElasticEvaluator(first.manager, LENGTH, batch=2)
        with pytest.raises(ConfigError, match="already registered under 'evaluation'"):
            ElasticEvaluator(first.manager, LENGTH, batch=2)
        first.optimizer.zero_grad()
        with pytest.raises(ConfigError, match=r"sums\(\) yielded 1 tensors for 15 batches; yield one for each"):
            evaluation.run(lambda batches: [torch.zeros(1)])
        second = Trainer(1, address)
        ElasticEvaluator(second.manager, LENGTH, batch=3)
        with pytest.raises(RefusedError, match="its evaluation is 29 samples in batches of 3, every 0 steps where"):
            second.optimizer.zero_grad()
        leave(first, second)
