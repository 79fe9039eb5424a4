"""Several micro batches in a step of a model that is sharded within its group."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.torch.train.forked import forkserver
from tests.torch.train.jobs import lighthouse
from tests.torch.train.ranks import Groups, RankSpec
from tests.torch.train.sharded import WIDTH, Tensors, Trainer, assert_near, loss_of, model
from tests.util import scaled
from torchft_x import ElasticLoader, ElasticSampler

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


# --- the same bits ------------------------------------------------------------------------------------------------------

SLOTS, SLOT = 7, 4
# Three steps, so that each slot has samples of one epoch: all ranks must use the same parts of the model.
ROWS = torch.randn(84, WIDTH, generator=torch.Generator().manual_seed(1)) * torch.logspace(-2, 2, 84)[:, None]
EACH = 0.0001  # MiB of a bucket: a few parameters; None: all are in one
LOST_IN = 2  # step in which the victim dies


def exact(spec: RankSpec) -> dict[int, Tensors]:
    """Train `until` a step, or until the groups are all there for three steps, after `losses`. Return the shards after each.

    Some slots use a part of the model that others don't, and each has a random mask. The rank `dies` kills itself in its backward number `nth` of a step.
    """
    k = spec.kwargs
    groups, losses, until, dies, nth = (k.get(n) for n in ("groups", "losses", "until", "dies", "nth"))
    trainer = Trainer(spec, seed=spec.group if k.get("returns") else 0, bucket_cap_mb=k.get("cap"))
    dealing: dict[str, Any] = {"rank": spec.rank, "ranks": spec.ranks, "reproducible": k.get("reproducible", True)}
    data = ElasticSampler(
        trainer.manager, len(ROWS), global_batch=SLOTS * SLOT, micro_batch=SLOT, policy="strict", **dealing
    )
    if "meet" in k:
        k["meet"].wait(scaled(30))

    def backward(step: int) -> None:
        for i, micro in enumerate(data.step()):
            mask = torch.rand(SLOT // spec.ranks, WIDTH)
            if micro.counts and dealing["reproducible"]:
                dist.all_gather(masks := [torch.empty_like(mask) for _ in range(spec.ranks)], mask)
                assert not torch.equal(*masks), "the ranks draw different numbers for their parts of a slot"
            rows = ROWS[micro.indices] * (mask > 0.2)
            loss = loss_of(trainer.model, rows, extra=micro.samples[0].position // SLOT % 3 == 0)
            if micro.counts and step == LOST_IN and i == nth and spec.rank == dies:
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()

    row = 0
    while trainer.manager.current_step() < until if until else row < 3 or losses:
        if trainer.step(backward) and groups:
            whole = trainer.manager.num_participants() == groups
            losses = losses and losses - (row > 0 and not whole)
            row = row + 1 if whole else 0
    return trainer.end()


def alone(last: int) -> list[dict[int, Tensors]]:
    """Return the shards of a single group after each step, by rank."""
    with lighthouse(1) as address, Groups(address) as groups:
        found: list[dict[int, Tensors]] = groups.start(0, exact, until=last).results()
    return found


def check_same_bits(results: list[list[dict[int, Tensors]]]) -> None:
    """Check that each rank of each group had the parameters and optimizer's state of a single group after each step."""
    want = alone(max(step for ranks in results for history in ranks for step in history))
    for ranks in results:
        for rank, history in enumerate(ranks):
            for step, shards in history.items():
                assert [n for n, value in shards.items() if not torch.equal(value, want[rank][step][n])] == [], (
                    rank,
                    step,
                )


@pytest.mark.parametrize(("count", "cap"), [(2, None), (3, EACH)])
def test_any_number_of_groups_has_the_same_bits(count: int, cap: float | None) -> None:
    with lighthouse(count) as address, Groups(address) as groups:
        check_same_bits(groups.run(count, exact, groups=count, cap=cap))


@pytest.mark.parametrize(("nth", "dies", "cap"), [(0, 1, EACH), (1, 0, None)], ids=["first slot", "last slot"])
def test_a_kill_inside_a_step_leaves_the_bits_as_they_are(nth: int, dies: int, cap: float | None) -> None:
    """Three groups, of which the last has two slots. It dies, heals and trains on."""
    meet = forkserver().Barrier(6)
    with lighthouse(1) as address, Groups(address) as groups:
        stayed = [groups.start(n, exact, meet=meet, groups=3, losses=1, cap=cap) for n in range(2)]
        victim = groups.start(2, exact, meet=meet, groups=3, dies=dies, nth=nth, cap=cap)
        victim.wait_dead(dies)
        victim.kill()
        back = groups.start(2, exact, returns=True, groups=3, cap=cap)
        results = [group.results() for group in (*stayed, back)]
    assert min(results[2][0]) > LOST_IN
    check_same_bits(results)


def test_an_ordinary_run_has_other_bits() -> None:
    """Else the tests above show nothing."""
    with lighthouse(3) as address, Groups(address) as groups:
        results = groups.run(3, exact, groups=3, reproducible=False)
    with pytest.raises(AssertionError, match="blocks"):
        check_same_bits(results)
