"""Sums of slots have the bits of the tree, wherever backward puts the gradients."""

from __future__ import annotations

import pytest
import torch

from torchft_x.comm.slot_sum import Grads, SlotSums
from torchft_x.core.data.reduction_tree import nodes_of, total

PARAMETERS = 4


def gradient(step: int, slot: int) -> Grads:
    """Return values with zeros of both signs. Some parameters have no gradient in some slots, one in none."""
    rng = torch.Generator().manual_seed(100 * step + slot)
    found: Grads = []
    for parameter in range(PARAMETERS):
        values = torch.randn(16, generator=rng) * 1e3 ** (slot % 3)
        values[torch.rand(16, generator=rng) < 0.4] = -0.0 if slot % 4 else 0.0
        found.append(None if parameter == 3 or (parameter, slot % 3) in {(1, 0), (2, 1)} else values)
    return found


def backward(grads: Grads, left: Grads) -> Grads:
    """Add gradients in place to the tensors that are there, as autograd does."""
    return [
        g if g is None or a is None else a.add_(g)
        for g, a in zip([None if g is None else g.clone() for g in grads], left, strict=True)
    ]


def plain(left: Grads, right: Grads) -> Grads:
    return [b if a is None else a if b is None else a + b for a, b in zip(left, right, strict=True)]


def bits(grads: Grads) -> list[list[int] | None]:
    return [None if g is None else g.view(torch.int32).tolist() for g in grads]


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("count", range(1, 10))
def test_the_bits_are_those_of_the_tree(first: int, count: int) -> None:
    sums = SlotSums()
    for step in range(3):
        sums.start(step)
        for slot in range(first, first + count):
            sums.add(slot, backward(gradient(step, slot), sums.left(slot) or [None] * PARAMETERS))
        nodes = nodes_of(((first, first + count),))
        assert len(sums.grads) == len(nodes)
        for (level, index), found in zip(nodes, sums.grads, strict=True):
            leaves = {(0, i): gradient(step, (index << level) + i) for i in range(1 << level)}
            assert bits(found) == bits(total(leaves, 1 << level, plain)), (step, level, index)
