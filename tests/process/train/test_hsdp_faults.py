"""Groups of two ranks that come late, die and return: survivors reduce again, newcomers copy shards rank by rank."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.torch.train.jobs import lighthouse
from tests.torch.train.ranks import Groups, RankSpec
from tests.torch.train.sharded import Tensors, Trainer, assert_near, full, model, reference
from tests.util import scaled

RANKS = 2
DIES_AFTER = 2  # committed steps of the victim; it dies in the next one's backward
PACE = 0.01  # seconds: a step that takes a moment, as a survivor makes hundreds while the other group comes back


@pytest.fixture
def groups() -> Iterator[Groups]:
    with lighthouse(1) as address, Groups(address, RANKS) as made:
        yield made


class RankResult:
    """What a rank tells of its attempt."""

    def __init__(self, history: dict[int, Tensors], participants: dict[int, int], attempts: int) -> None:
        self.history = history
        self.participants = participants  # by committed step
        self.attempts = attempts


def train(t: Trainer, together: int, losses: int = 0) -> RankResult:
    """Until so many steps in a row have had two groups, after `losses` of the other one. All groups stop at one step."""
    participants: dict[int, int] = {}
    row = 0
    while row < together or losses > 0:
        if t.step():
            n = participants[t.manager.current_step()] = t.manager.num_participants()
            losses -= row > 0 and n == 1
            row = row + 1 if n == 2 else 0
        time.sleep(PACE)
    return RankResult(t.end(), participants, t.attempts)


def state_moves_in_forward(t: Trainer) -> None:
    """The forward stops where FSDP has gathered the root and a block, until the quorum's snapshot and fetch are done."""

    def wait(*_: Any) -> None:
        round = t.manager.steps.round
        assert round is None or round.done.wait(scaled(20))  # None: a newcomer's first step, which is for itself

    t.net.blocks[1][2].register_forward_pre_hook(wait)


def late_or_first(spec: RankSpec) -> Any:
    t = Trainer(spec, seed=spec.group)
    state_moves_in_forward(t)
    return train(t, together=3)


def same_where_shared(results: list[list[RankResult]]) -> int:
    """Every rank's shards, and its optimizer's state, are bit-equal in all results at shared steps; how many."""
    shared = 0
    for rank in range(RANKS):
        mine = [result[rank].history for result in results]
        for a, b in pairwise(mine):
            for step in a.keys() & b.keys():
                shared += 1
                assert a[step].keys() == b[step].keys()
                for name in a[step]:
                    assert torch.equal(a[step][name], b[step][name]), (step, rank, name)
    return shared // RANKS


def test_a_late_group_copies_each_rank_s_shards_while_the_source_s_forward_runs(groups: Groups) -> None:
    first = groups.start(0, late_or_first)
    first.wait_step(2)
    late = groups.start(1, late_or_first)
    results = [first.results(), late.results()]
    assert same_where_shared(results) >= 3
    assert min(results[1][0].history) > 2  # it began where the first one stood


def dying(spec: RankSpec) -> Any:
    t = Trainer(spec, seed=spec.kwargs.get("seed", 0), bucket_cap_mb=0.0001, clip=0.5)
    if spec.kwargs.get("dies") == spec.rank:

        def die(*_: Any) -> None:
            if len(t.history) == DIES_AFTER:
                os.kill(os.getpid(), signal.SIGKILL)

        t.net.blocks[0].register_full_backward_pre_hook(die)  # the head's gradients are on their way
    return train(t, together=3, losses=spec.kwargs.get("losses", 0))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_in_backward_costs_the_others_no_step(groups: Groups, rank: int) -> None:
    survivor = groups.start(0, dying, losses=1)
    survivor.wait_step(1)
    victim = groups.start(1, dying, dies=rank)
    victim.wait_dead(rank)
    victim.kill()  # as a supervisor does when one of a group's ranks is gone
    back = groups.start(1, dying, seed=5)
    results = [survivor.results(), back.results()]
    assert same_where_shared(results) >= 3
    for result in results[0]:
        assert result.attempts == len(result.history)  # the step was reduced again, and no forward was thrown away
        assert sum(n == 2 for n in result.participants.values()) >= DIES_AFTER - 1 + 3
    took_part = [[0, 1] if n == 2 else [0] for n in results[0][0].participants.values()]
    want = reference(took_part, RANKS, clip=0.5)
    net = model(0)
    for step, expected in enumerate(want, start=1):
        assert_near(full([result.history[step] for result in results[0]], net), expected, step)
