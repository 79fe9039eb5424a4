"""What an exchange of groups that train apart sends."""

from __future__ import annotations

from unittest.mock import create_autospec

import torch
from torch import nn

from torchft_x.core.training.sync_schedule import Census
from torchft_x.train.local.exchange import Exchange
from torchft_x.train.local.fragments import Fragment
from torchft_x.train.manager import Manager


def exchange(memory_format: torch.memory_format) -> Exchange:
    net = nn.Conv2d(3, 4, 3, bias=False)
    with torch.no_grad():
        net.weight.zero_()
    net = net.to(memory_format=memory_format)
    outer = torch.optim.SGD(net.parameters(), lr=1.0)
    part = Fragment(net, outer, carries_outer=True, device=None, pin_memory=False, alpha=0.0)
    with torch.no_grad():
        net.weight.sub_(torch.arange(108.0).reshape(4, 3, 3, 3))
    return Exchange(create_autospec(Manager), part, 1.0, lambda: None, cap=1 << 20, quantize=False, changes=False)


def test_groups_with_unlike_memory_formats_send_the_elements_in_one_order() -> None:
    sent = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        one = exchange(memory_format)
        one.send(Census(1.0, False))
        sent.append(one._flats.flat[0])
    assert torch.equal(sent[0], torch.arange(108.0))
    assert torch.equal(sent[1], sent[0])
