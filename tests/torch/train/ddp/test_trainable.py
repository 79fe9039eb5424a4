"""Parameters that are unfrozen, added or replaced after the model was wrapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from torch import nn

from tests.torch.train.ddp.test_reducer import alone
from torchft_x import DiLoCo, DistributedDataParallel, LocalSGD, Manager
from torchft_x.errors import ConfigError
from torchft_x.train.ddp.trainable import TrainableParameters

Change = Callable[[Any], object]
UNFREEZE: Change = lambda net: net[0].requires_grad_(True)  # noqa: E731
REPLACE: Change = lambda net: net.__setitem__(1, nn.Linear(4, 4))  # noqa: E731
ADD: Change = lambda net: net.append(nn.Linear(4, 4))  # noqa: E731
FREEZE: Change = lambda net: net[1].requires_grad_(False)  # noqa: E731
REMOVE: Change = lambda net: net.pop(1)  # noqa: E731


def half_frozen() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[0].requires_grad_(False)
    return net


@pytest.mark.parametrize(("change", "name"), [(UNFREEZE, "0.weight"), (REPLACE, "1.weight"), (ADD, "2.weight")])
def test_what_would_not_be_averaged_is_refused_in_the_next_forward(change: Change, name: str) -> None:
    net = half_frozen()
    model = DistributedDataParallel(alone(), net)
    model(torch.ones(1, 4)).sum().backward()
    change(net)
    with torch.no_grad():
        model(torch.ones(1, 4))
    with pytest.raises(ConfigError, match=f"parameter {name} was unfrozen, added or replaced after"):
        model(torch.ones(1, 4))


@pytest.mark.parametrize("change", [FREEZE, REMOVE])
def test_fewer_parameters_are_no_mistake(change: Change) -> None:
    net = half_frozen()
    watched = TrainableParameters(net)
    change(net)
    watched.check()


def test_a_parameter_that_two_modules_share_is_known_by_both() -> None:
    net = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    watched = TrainableParameters(net)
    net["b"].weight = net["a"].weight
    net["a"].below = net  # a module may hold itself
    watched.check()


@pytest.mark.parametrize("change", [UNFREEZE, REPLACE, ADD])
@pytest.mark.parametrize("algorithm", ["local_sgd", "diloco"])
def test_between_exchanges_too(algorithm: str, change: Change) -> None:
    net, manager = half_frozen(), create_autospec(Manager)
    manager._use_async_quorum = False
    inner, outer = (torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=1.0) for _ in range(2))
    loop = LocalSGD(manager, net, inner, 2) if algorithm == "local_sgd" else DiLoCo(manager, [net], inner, outer, 2)
    with loop:
        change(net)
        if algorithm == "local_sgd" and change is UNFREEZE:  # it averages frozen parameters, too
            inner.step()
            return
        with pytest.raises(ConfigError, match="after the model was wrapped"):
            inner.step()
