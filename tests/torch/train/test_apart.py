"""LocalSGD and DiLoCo against one process that computes what all groups do: a real lighthouse, real gloo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from torch import nn

from tests.torch.train.apart import LocalTrainer, equal, near, reference
from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import leave, lighthouse, rng
from tests.util import wait_for
from torchft_x.errors import ConfigError
from torchft_x.observe import subscribe
from torchft_x.train.local.diloco import DiLoCo
from torchft_x.train.local.local_sgd import LocalSGD
from torchft_x.train.manager import Manager

GROUPS = pytest.mark.parametrize("groups", [2, 3])


def start(n: int, addr: str, each: Callable[[int], dict[str, Any]] = lambda g: {}, **kwargs: Any) -> list[LocalTrainer]:
    """`each`: settings that differ from group to group."""
    return run_threads(n, lambda g: LocalTrainer(g, addr, **kwargs, **each(g)))


def train(n: int, steps: int, **kwargs: Any) -> list[LocalTrainer]:
    with lighthouse(n) as addr:
        groups = start(n, addr, **kwargs)
        run_threads(n, lambda g: groups[g].run(steps))
        leave(*groups)
    return groups


def check(groups: list[LocalTrainer], steps: int, **settings: Any) -> None:
    want, own = reference(len(groups), steps, **settings)
    assert len(want) >= 2
    for g in groups:
        assert sorted(g.history) == list(range(1, len(want) + 1))
        for k, found in g.history.items():
            assert equal(found, groups[0].history[k])
            near(found, want[k - 1])
        near(g.weights(), own[g.group])


def wide(seed: int) -> nn.Module:
    with rng:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 300), nn.ReLU(), nn.Linear(300, 30), nn.ReLU(), nn.Linear(30, 3))


# --- numbers ----------------------------------------------------------------------------------------------------------


@GROUPS
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_local_sgd_is_the_average(groups: int, asynchronous: bool) -> None:
    found = train(groups, 11, algorithm="local_sgd", sync_every=3, manager={"use_async_quorum": asynchronous})
    check(found, 11, algorithm="local_sgd", sync_every=3)


@pytest.mark.parametrize("outers", [1, 2], ids=["one outer optimizer", "two outer optimizers"])
@pytest.mark.parametrize(("delay", "alpha"), [(0, 0.0), (0, 0.5), (2, 0.0), (1, 0.25), (2, 1.0)], ids=str)
def test_streaming_diloco(delay: int, alpha: float, outers: int) -> None:
    groups, steps = 2 + outers % 2, 16
    how = {"sync_every": 6, "fragments": 2}
    found = train(groups, steps, outers=outers, fragment_sync_delay=delay, fragment_update_alpha=alpha, **how)
    check(found, steps, delay=delay, alpha=alpha, **how)


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("cap_mb", [None, 0.004, 0.02], ids=["tensor by tensor", "smaller than a tensor", "several"])
def test_buckets_of_any_size_average_the_same(cap_mb: float | None, delay: int) -> None:
    """The net's largest tensor has 9000 values; buckets hold 1024 and 5120."""
    kwargs = {"use_bucketization": cap_mb is not None, "bucket_cap_mb": cap_mb, "fragment_sync_delay": delay}
    groups = train(2, 6, each=lambda g: {"net": wide(g)}, sync_every=2, **kwargs)
    check(groups, 6, sync_every=2, delay=delay, make=wide)


@pytest.mark.parametrize(
    "mistake",
    [
        {"sync_every": 0},
        {"sync_every": 3, "fragments": 2},
        {"fragment_sync_delay": 4},
        {"fragment_update_alpha": 1.5},
        {"bucket_cap_mb": 0},
        {"should_quantize": "fp8"},  # no chip here has it: said at the start, not at the first exchange
        {"manager": {"use_async_quorum": True}},
    ],
    ids=str,
)
def test_a_mistake_is_a_sentence(mistake: dict[str, Any]) -> None:
    with lighthouse() as addr, pytest.raises(ConfigError, match=r"\d|synchronous"):
        LocalTrainer(0, addr, **mistake)


def test_sent_from_the_cpu_and_kept_where_one_says() -> None:
    found = train(
        2, 7, sync_every=3, copy_pseudogradients_to_cpu=True, backup_device=torch.device("cpu"), pin_memory=False
    )
    check(found, 7, sync_every=3)
    assert found[0].manager.current_step() == 1 + 2  # the first step agrees on the weights


@pytest.mark.parametrize(("fmt", "sends"), [("int8", 2 + 83 + 1), ("int4", 4 + 42), (False, 4 * 83)])
def test_the_bytes_of_each_exchange_are_told(fmt: str | bool, sends: int) -> None:
    """83 weights, two groups: a ring sends each of them once. The census has four float64."""
    told: list[dict[str, Any]] = []
    unsubscribe = subscribe(told.append)
    groups = train(2, 4, sync_every=2, should_quantize=fmt)
    unsubscribe()
    for g in groups:
        commits = [e for e in told if e["event"] == "commit" and e["group"] == f"group_{g.group}"]
        assert [e["bytes"] for e in commits] == [32, 32 + sends, 32 + sends]
        assert g.manager.bytes_sent() == 3 * 32 + 2 * sends


def test_a_quantised_exchange_gets_on_during_inner_steps(pair_address: str) -> None:
    """Its second half is issued by whoever waits, and that must not be the end of the delay."""
    groups = start(2, pair_address, sync_every=4, fragment_sync_delay=2, should_quantize="int8")

    def body(g: int) -> None:
        with groups[g].loop:
            groups[g].step()
            groups[g].step()  # sends
            exchange = groups[g].loop._loop._exchange
            assert exchange is not None
            wait_for(lambda: all(w.is_completed() for w in exchange._works))
            assert groups[g].loop.exchanges == 0
            groups[g].step()
            groups[g].step()

    run_threads(2, body)
    assert equal(groups[0].history[1], groups[1].history[1])


def test_a_weighted_average() -> None:
    groups = train(2, 6, each=lambda g: {"weight": lambda: 3.0 if g else 1.0}, sync_every=2)
    check(groups, 6, sync_every=2, weights=[1.0, 3.0])


@pytest.mark.parametrize("algorithm", ["local_sgd", "diloco"])
def test_a_managers_mock_will_do(algorithm: str) -> None:
    """As torchft's users test their scripts: whatever is not the mock's business happens."""
    manager = create_autospec(Manager)
    manager._use_async_quorum = False
    manager.current_step.return_value = 0
    net = nn.Linear(2, 1)
    inner = torch.optim.SGD(net.parameters(), lr=0.1)
    outer = torch.optim.SGD(net.parameters(), lr=1.0)
    loop = LocalSGD(manager, net, inner, 2) if algorithm == "local_sgd" else DiLoCo(manager, [net], inner, outer, 2)
    with loop:
        begun = manager.start_quorum.call_count
        for committed in (True, False):
            manager.should_commit.return_value = committed
            before = net.weight.detach().clone()
            for _ in range(2):
                net(torch.ones(1, 2)).sum().backward()
                inner.step()
            # One group's average is what it has, and one whole outer step leads there; a refusal changes nothing.
            torch.testing.assert_close(net.weight, before - 0.1 * (1 + 2 if committed else 3 + 4))
        assert manager.start_quorum.call_count == begun + 2
    assert loop.exchanges == 1


def test_local_sgd_exchanges_frozen_parameters_too() -> None:
    manager, net = create_autospec(Manager), nn.Linear(2, 1)
    net.weight.requires_grad_(False)
    loop = LocalSGD(manager, net, torch.optim.SGD([net.bias], lr=0.1), 1)
    with loop, torch.no_grad():
        net.weight += 1.0
        net.bias.grad = torch.ones(1)
        loop._loop._optimizer.step()
    assert torch.equal(loop.global_parameters[0]["weight"], net.weight)
    assert not net.weight.requires_grad
