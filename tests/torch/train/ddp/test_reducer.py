"""Gradients of the reducer against a single-process reference."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.torch.train.fakes import FakeManager, gloo_groups, run_threads
from torchft_x.errors import ConfigError
from torchft_x.train.ddp.wrapper import DistributedDataParallel, PureDistributedDataParallel


class Net(nn.Module):
    """Large and small parameters, two of which only some inputs use, one that none does."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 300)
        self.b = nn.Linear(300, 150)  # 180 kB: above SMALL_BYTES
        self.c = nn.Linear(150, 4)
        self.sometimes = nn.Linear(4, 4)
        self.never = nn.Linear(4, 4)
        self.conv = nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor, extra: bool = False) -> torch.Tensor:
        y = self.c(torch.relu(self.b(torch.relu(self.a(x)))))
        y = y + self.conv(x.reshape(-1, 2, 2, 2).repeat(1, 1, 2, 2)).mean()
        return self.sometimes(y) if extra else y


def batch(rank: int, k: int) -> torch.Tensor:
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(100 * rank + k))


def reference(net: nn.Module, groups: int, passes: Callable[[nn.Module, int], None]) -> dict[str, torch.Tensor | None]:
    """Average of the groups' accumulated gradients; None where no group has one."""
    copies = [copy.deepcopy(net) for _ in range(groups)]
    for rank, model in enumerate(copies):
        passes(model, rank)
    grads: dict[str, torch.Tensor | None] = {}
    for name, _ in net.named_parameters():
        have = [g for m in copies if (g := m.get_parameter(name).grad) is not None]
        grads[name] = sum(have) / groups if have else None  # type: ignore[assignment]
    return grads


def check(net: nn.Module, want: dict[str, torch.Tensor | None]) -> None:
    for name, p in net.named_parameters():
        expected = want[name]
        if expected is None:
            assert p.grad is None, name
        else:
            assert p.grad is not None, name
            torch.testing.assert_close(p.grad, expected, atol=1e-6, rtol=1e-5)
            assert p.grad.stride() == p.stride(), name


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def backward(model: nn.Module, rank: int, k: int = 0, **kwargs: Any) -> None:
    model(batch(rank, k), **kwargs).square().sum().backward()


def alone() -> Any:
    return FakeManager(gloo_groups(1)[0], 1)


Fake = Callable[[int], dict[str, Any]]


def averaged(
    net: nn.Module, groups: int, passes: Callable[[nn.Module, int], None], kind: Any = DistributedDataParallel,
    participants: int | None = None, fake: Fake = lambda rank: {},
) -> list[nn.Module]:  # fmt: skip
    """Return the groups' nets after their passes. `fake`: how each group's manager behaves."""
    pgs = gloo_groups(groups)

    def body(rank: int) -> nn.Module:
        manager = FakeManager(pgs[rank], participants or groups, **fake(rank))
        model = kind(manager, copy.deepcopy(net))
        passes(model, rank)
        assert not manager.errors
        return model.module

    return run_threads(groups, body)


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", [DistributedDataParallel, PureDistributedDataParallel])
def test_average_with_unused_parameters(net: Net, groups: int, late: bool, kind: Any) -> None:
    def passes(model: nn.Module, rank: int) -> None:
        backward(model, rank, extra=rank == 0)

    want = reference(net, groups, passes)
    assert want["never.weight"] is None
    assert want["sometimes.weight"] is not None
    nets = averaged(net, groups, passes, kind, fake=lambda rank: {"late": late, "votes": rank > 0})
    for n in nets:
        check(n, want)
    for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert p.grad is None or torch.equal(p.grad, q.grad)


@pytest.mark.parametrize("kind", [DistributedDataParallel, PureDistributedDataParallel])
def test_gradients_that_keep_their_graph_are_averaged_without_it(net: Net, kind: Any) -> None:
    def passes(model: nn.Module, rank: int) -> None:
        model(batch(rank, 0), extra=True).square().sum().backward(create_graph=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of a reference cycle between a parameter and such a gradient
        want = reference(net, 2, passes)
        for n in averaged(net, 2, passes, kind):
            check(n, {name: None if g is None else g.detach() for name, g in want.items()})
            assert not any(p.grad is not None and p.grad.requires_grad for p in n.parameters())


@pytest.mark.parametrize("set_to_none", [True, False])
def test_steps_with_both_ways_of_zero_grad(net: Net, set_to_none: bool) -> None:
    pgs = gloo_groups(2)

    def body(rank: int) -> list[nn.Module]:
        model = DistributedDataParallel(FakeManager(pgs[rank], 2), copy.deepcopy(net), bucket_cap_mb=0.01)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for k in range(3):
            optimizer.zero_grad(set_to_none=set_to_none)
            backward(model, rank, k, extra=k == 1)
            optimizer.step()
        return [model.module]

    ours = run_threads(2, body)
    one = copy.deepcopy(net)
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9)
    for k in range(3):
        optimizer.zero_grad(set_to_none=set_to_none)
        (sum(one(batch(r, k), extra=k == 1).square().sum() for r in range(2)) / 2).backward()
        optimizer.step()
    for (name, p), q, r in zip(one.named_parameters(), *(o[0].parameters() for o in ours), strict=True):
        torch.testing.assert_close(q, p, atol=1e-6, rtol=1e-5, msg=name)
        assert torch.equal(q, r)


def test_no_sync_accumulates_also_what_the_last_pass_does_not_use(net: Net) -> None:
    def passes(model: nn.Module, rank: int) -> None:
        with model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext():
            backward(model, rank, 0, extra=True)
        backward(model, rank, 1)

    want = reference(net, 2, passes)
    for n in averaged(net, 2, passes):
        check(n, want)
    manager = alone()
    model = DistributedDataParallel(manager, net)
    with model.no_sync():
        backward(model, 0)
    assert manager.sizes == []


def test_two_synchronised_backwards_add_up(net: Net) -> None:
    def passes(model: nn.Module, rank: int) -> None:
        for k in range(3):
            backward(model, rank, k, extra=k == 2)

    want = reference(net, 2, passes)
    for n in averaged(net, 2, passes):
        check(n, want)


@pytest.mark.parametrize("late", [False, True])
def test_who_heals_sends_zeros_and_gets_the_average(net: Net, late: bool) -> None:
    fake: Fake = lambda rank: {"contributes": rank != 2, "late": late}  # noqa: E731
    for n in averaged(net, 3, backward, participants=2, fake=fake):
        check(n, reference(net, 2, backward))


@pytest.mark.parametrize("fail_at", [[0], [1], [0, 1]])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_failed_reduction_leaves_the_local_gradients(net: Net, fail_at: list[int], set_to_none: bool) -> None:
    local = copy.deepcopy(net)
    backward(local, 0, 1)
    manager = alone()
    model = DistributedDataParallel(manager, net, bucket_cap_mb=0.01)
    backward(model, 0)
    model.zero_grad(set_to_none=set_to_none)
    manager.fail_at = [len(manager.sizes) + i for i in fail_at]
    backward(model, 0, 1)
    for (name, p), q in zip(model.module.named_parameters(), local.parameters(), strict=True):
        if q.grad is not None:
            assert p.grad is not None
            assert torch.equal(p.grad, q.grad), name


def test_errors_of_the_manager_do_not_come_out_of_backward(net: Net) -> None:
    manager = alone()

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no quorum")

    manager.allreduce = broken  # type: ignore[method-assign]
    backward(DistributedDataParallel(manager, net), 0)
    assert "no quorum" in str(manager.errors[0])


def test_a_backward_that_raises_does_not_disturb_the_next(net: Net) -> None:
    model = DistributedDataParallel(alone(), net)
    x = batch(0, 0).requires_grad_()

    def explode(_: Any) -> None:
        raise ValueError("user hook")

    x.register_hook(explode)
    with pytest.raises(ValueError, match="user hook"):
        model(x).square().sum().backward()
    model.zero_grad()
    backward(model, 0)
    want = reference(net, 1, lambda m, r: (m.zero_grad(), backward(m, r))[1])
    check(net, want)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1))

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = copy.deepcopy(net)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net[2](checkpoint(self.net[:2], x, use_reentrant=reentrant))

    x = batch(0, 0).requires_grad_()
    plain = Wrapped()
    plain(x).square().sum().backward()
    manager = alone()
    model = DistributedDataParallel(manager, Wrapped())
    for _ in range(2):
        model.zero_grad()
        model(x).square().sum().backward()
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
    assert not manager.errors


def test_bad_arguments_get_a_sentence(net: Net) -> None:
    manager = alone()
    with pytest.warns(UserWarning, match="ignores find_unused_parameters"):
        model = DistributedDataParallel(manager, net, find_unused_parameters=True)
    with pytest.raises(TypeError, match="bucket_cap"):
        DistributedDataParallel(manager, net, bucket_cap=3)
    with pytest.raises(ConfigError, match="register_comm_hook"):
        model.register_comm_hook(None, None)
    with pytest.raises(ConfigError, match="nothing to average"):
        DistributedDataParallel(manager, nn.ReLU())


def test_mixed_dtypes_reduce_in_buckets_of_their_own() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).to(torch.bfloat16))
    manager = alone()
    model = DistributedDataParallel(manager, net)
    net[1](net[0](torch.ones(1, 4)).bfloat16()).sum().backward()
    assert len(manager.sizes) == 2
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in model.parameters())
