"""Several micro batches in a step of a model that is sharded within its group."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.torch.train.jobs import lighthouse
from tests.torch.train.ranks import Groups, RankSpec
from tests.torch.train.sharded import WIDTH, Tensors, Trainer, assert_near, loss_of, model
from torchft_x import ElasticLoader

STEPS, GLOBAL = 3, 24
DATA = torch.randn(STEPS * GLOBAL, WIDTH, generator=torch.Generator().manual_seed(3))


def train(spec: RankSpec) -> Tensors:
    """Train two groups of two ranks on six slots. The ranks cut each slot; FSDP reduce-scatters in each backward."""
    late: dict[str, Any] = spec.kwargs
    trainer = Trainer(spec, seed=0, **late)
    data = ElasticLoader(
        trainer.manager, DATA, global_batch=GLOBAL, micro_batch=4, shuffle=False, rank=spec.rank, ranks=spec.ranks
    )

    def backward(step: int) -> None:
        counted = 0
        for micro in data.step():
            assert torch.equal(micro.batch, DATA[micro.indices])
            loss_of(trainer.model, micro.batch).backward()
            counted += 1
        assert counted == 3

    while data.epoch < 1:
        trainer.step(backward)
    assert trainer.manager.current_step() == STEPS
    found = trainer.whole()
    trainer.end()
    return found


@pytest.mark.parametrize("kwargs", [{}, {"vote_in_backward": False}], ids=str)
def test_the_gradient_is_that_of_one_big_batch(kwargs: dict[str, Any]) -> None:
    net = model(0)
    optim = torch.optim.AdamW(net.parameters(), lr=0.05)
    for step in range(STEPS):
        optim.zero_grad()
        loss_of(net, DATA[step * GLOBAL : (step + 1) * GLOBAL]).backward()
        optim.step()
    with lighthouse(2) as address, Groups(address) as groups:
        for ranks in groups.run(2, train, **kwargs):
            for found in ranks:
                assert_near(found, {n: p.detach() for n, p in net.named_parameters()}, "whole")
