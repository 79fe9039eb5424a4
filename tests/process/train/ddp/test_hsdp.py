"""Sharded models over groups of two ranks, as real processes, against one process that sees all batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.torch.train.jobs import lighthouse
from tests.torch.train.ranks import Groups, RankSpec
from tests.torch.train.sharded import (
    Net,
    Tensors,
    Trainer,
    assert_near,
    assert_same,
    batch,
    full,
    loss_of,
    model,
    reference,
    shard,
)
from torchft_x.errors import StepError

RANKS = 2


@pytest.fixture
def groups() -> Iterator[Groups]:
    with lighthouse(2) as address, Groups(address, RANKS) as made:
        yield made


def check(found: list[list[dict[int, Tensors]]], want: list[Tensors], frozen: bool = False) -> None:
    """Rank r of every group has the same bits, and together they are what the reference has."""
    net = model(0, frozen)
    assert_same(found)
    for step, expected in enumerate(want, start=1):
        assert_near(full([found[0][rank][step] for rank in range(RANKS)], net), expected, step)


def two_micro_batches(spec: RankSpec) -> Any:
    """Two micro-batches a step, in another way each time."""
    t = Trainer(spec)

    def backward(step: int) -> None:
        first, second = (batch(spec.group, spec.rank, step, micro) for micro in range(2))
        way = step % 4
        if way == 0:  # two forwards and one backward
            ((loss_of(t.model, first) + loss_of(t.model, second)) / 2).backward()
            return
        with t.model.no_sync(scatter=way > 1):
            loss_of(t.model, first).div(2).backward()
            if way == 3:  # as in a pipeline, whose last backward is not the script's call
                loss_of(t.model, second).div(2).backward()
        if way == 1:
            with pytest.raises(StepError, match=r"use no_sync\(scatter=True\)"):
                t.model.reduce_gradients()
        if way == 3:
            t.model.reduce_gradients()
        else:
            loss_of(t.model, second).div(2).backward()

    history = t.run_to(5, backward).end()
    assert t.attempts == 5
    return history


def test_gradients_of_micro_batches_are_averaged_once(groups: Groups) -> None:
    check(groups.run(2, two_micro_batches), reference(2, RANKS, 5, micro=2))


def extra(group: int, rank: int, step: int) -> bool:
    """Group 0 uses the part in one step, group 1 in another, both in the third; ranks of a group do the same."""
    return (group, step) in {(0, 1), (1, 2), (0, 3), (1, 3)}


def frozen_and_unused(spec: RankSpec) -> Any:
    t = Trainer(spec, net=model(0, frozen=True))

    def backward(step: int) -> None:
        loss_of(t.model, batch(spec.group, spec.rank, step), extra(spec.group, spec.rank, step)).backward()
        grads = {name: p.grad is not None for name, p in t.net.named_parameters()}
        assert not grads["never.weight"]
        assert not grads["blocks.0.0.weight"]
        assert grads["sometimes.0.weight"] == (step in {1, 2, 3}), step

    return t.run_to(5, backward).end()


def test_frozen_parameters_and_those_that_only_some_groups_use(groups: Groups) -> None:
    check(groups.run(2, frozen_and_unused), reference(2, RANKS, 5, frozen=True, extra=extra), frozen=True)


def mixed_precision(spec: RankSpec) -> Any:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    t = Trainer(spec, cut=lambda net: shard(net, mp_policy=policy))
    history = t.run_to(3).end()
    assert all(v.dtype == torch.float32 for v in history[3].values())
    assert all(p.grad.dtype == torch.float32 for p in t.net.parameters() if p.grad is not None)
    return history


def test_mixed_precision_computes_in_bfloat16_and_averages_between_groups_in_the_parameters_own_type(
    groups: Groups,
) -> None:
    found = groups.run(2, mixed_precision)
    assert_same(found)
    whole = full([found[0][rank][3] for rank in range(RANKS)], model(0))
    want = reference(2, RANKS, 3)[-1]
    for name in want:
        torch.testing.assert_close(whole[name], want[name], atol=0.12, rtol=0.0)


def only_the_blocks(spec: RankSpec) -> Any:
    """The root isn't sharded: its own parameters are whole and equal on the ranks, as its gradients are made to be."""

    def cut(net: Any) -> None:
        for block in net.blocks:
            fully_shard(block)

    t = Trainer(spec, cut=cut)
    passes: list[bool] = []
    end_pass = t.manager.steps.end_pass

    def told(kept: Any, works: int, good: bool, meanwhile: Any) -> bool:
        passes.append(good)
        return end_pass(kept, works, good, meanwhile)

    t.manager.steps.end_pass = told  # type: ignore[method-assign]

    def backward(step: int) -> None:
        loss_of(t.model, batch(spec.group, 0, step)).backward()

    history = t.run_to(3, backward).end()
    assert passes == [True] * 3
    return history


def test_a_root_that_is_not_sharded(groups: Groups) -> None:
    """Here the head's gradient comes before FSDP has begun with its backward, and the first block's after all others."""
    found = groups.run(2, only_the_blocks)
    assert_same(found)
    for step, expected in enumerate(reference(2, 1, 3), start=1):
        for rank in range(RANKS):
            mine = found[0][rank][step]
            assert_near({n: v for n, v in mine.items() if n in expected and not n.startswith("blocks")}, expected, step)
        shards = [{n: v for n, v in found[0][r][step].items() if n.startswith("blocks")} for r in range(RANKS)]
        assert_near(full(shards, model(0)), expected, step)


def tensor_parallel(net: Net, mesh: Any) -> None:
    for block in net.blocks:
        parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def with_tensor_parallel(spec: RankSpec) -> Any:
    """Ranks are (data, tensor): those of one data rank see one batch."""
    mesh = init_device_mesh("cpu", (spec.ranks // 2, 2), mesh_dim_names=("data", "tensor"))

    def cut(net: Net) -> None:
        tensor_parallel(net, mesh["tensor"])
        if spec.kwargs["fsdp"]:
            shard(net, mesh["data"])

    t = Trainer(spec, net=model(0, inner=8), cut=cut)
    wholes = []

    def backward(step: int) -> None:
        loss_of(t.model, batch(spec.group, spec.rank // 2, step)).backward()

    for _ in range(3):
        assert t.step(backward)
        wholes.append(t.whole())
    return t.end(), wholes


def check_wholes(found: list[list[Any]], want: list[Tensors]) -> None:
    assert_same([[history for history, _ in group] for group in found])
    for _, wholes in found[0]:
        for step, expected in enumerate(want, start=1):
            assert_near(wholes[step - 1], expected, step)


def test_tensor_parallelism_alone(groups: Groups) -> None:
    check_wholes(groups.run(2, with_tensor_parallel, fsdp=False), reference(2, 1, 3, inner=8))


def order(spec: RankSpec) -> Any:
    net = model(0)
    t = Trainer(spec, net=net, bucket_cap_mb=0.0001)
    issued: list[int] = []
    names = {id(p): name for name, p in net.named_parameters()}
    arrived: list[tuple[str, int]] = []
    reducer = t.model._reducer
    send = reducer._launch

    def launch() -> None:
        issued.append(reducer._next)
        send()

    reducer._launch = launch
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: arrived.append((names[id(p)], len(issued))))

    def backward(step: int) -> None:
        loss_of(t.model, batch(spec.group, spec.rank, step), extra=True).backward()

    t.run_to(1, backward)
    t.end()
    return arrived, issued, [names[id(p)] for p in reducer._params]


def test_buckets_are_sent_while_backward_runs_though_the_roots_gradients_come_last(groups: Groups) -> None:
    for arrived, issued, params in [r for g in groups.run(2, order) for r in g]:
        assert params[0].startswith(("never", "head"))
        assert params[-1] == "sometimes.0.bias"
        assert issued == sorted(issued)
        at_root = [sent for name, sent in arrived if name.startswith("head")]
        assert at_root[0] >= 1  # how many depends on the rank: its shards are larger or smaller
        assert len(issued) > at_root[0]


def offloading(net: Net) -> None:
    """A policy that changes nothing without a device, and does no harm."""
    shard(net, offload_policy=CPUOffloadPolicy(pin_memory=False))


def plain(spec: RankSpec) -> Any:
    return Trainer(spec, **spec.kwargs).run_to(4).end()


@pytest.mark.parametrize(
    "options",
    [{"bucket_cap_mb": 0.0001, "clip": 0.5}, {"cut": offloading}],
    ids=["many buckets, clipped", "offload policy"],
)
def test_two_groups_train_like_one_process(groups: Groups, options: dict[str, Any]) -> None:
    check(groups.run(2, plain, **options), reference(2, RANKS, 4, clip=options.get("clip", 0.0)))


def test_tensor_parallelism_and_fsdp_on_a_mesh_of_two_dimensions(groups: Groups) -> None:
    groups.ranks = 4
    check_wholes(groups.run(2, with_tensor_parallel, fsdp=True), reference(2, 2, 3, inner=8))
