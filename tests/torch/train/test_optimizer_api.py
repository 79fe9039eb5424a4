"""What other libraries do with an optimizer works with ours."""

from __future__ import annotations

import copy
from unittest.mock import create_autospec

import pytest
import torch

from torchft_x import Manager, Optimizer
from torchft_x.errors import ConfigError


def test_hooks_run_once_for_each_committed_step() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    manager = create_autospec(Manager)
    optimizer = Optimizer(manager, torch.optim.SGD([weight], lr=0.1))
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.register_state_dict_post_hook(lambda _, state: state | {"more": 1})
    optimizer.register_load_state_dict_pre_hook(lambda *_: calls.append("load"))
    for committed in (True, False):
        manager.should_commit.return_value = committed
        optimizer.step()
    assert calls == ["before", "after"]
    assert optimizer.state_dict()["more"] == 1
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["before", "after", "load"]


def test_it_can_not_be_copied_and_has_no_more_than_the_optimizer() -> None:
    optimizer = Optimizer(create_autospec(Manager), torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))
    with pytest.raises(ConfigError, match="can't be pickled or copied"):
        copy.copy(optimizer)
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        optimizer.nothing_of_that_name  # noqa: B018
