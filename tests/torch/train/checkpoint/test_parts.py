from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.torch.versioned import Turned
from torchft_x.train.checkpoint import parts


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


@pytest.mark.parametrize("saves_compiled", [False, True])
@pytest.mark.parametrize("loads_compiled", [False, True])
def test_versions_of_modules_come_back_compiled_or_not(saves_compiled: bool, loads_compiled: bool) -> None:
    source, target = (nn.Sequential(Turned(), nn.Sequential(Turned())) for _ in range(2))
    saved = (compiled(source) if saves_compiled else source).state_dict()
    parts.put_back({"m": compiled(target) if loads_compiled else target}, {"m": saved})
    for ours, theirs in zip(target.parameters(), source.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_state_without_versions_is_converted_as_torch_does() -> None:
    source, target = Turned(), Turned()
    parts.put_back({"m": compiled(target)}, {"m": dict(source.state_dict())})
    assert torch.equal(target.weight, source.weight.t())
