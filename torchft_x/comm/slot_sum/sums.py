"""Sums of a step's local gradients over nodes of `core.data.tree`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchft_x.core.data.tree import Node, push

Grads = list[torch.Tensor | None]
"""Gradients by parameter; None where the loss does not depend on the parameter."""


class SlotSums:
    """Gradients of the slots of one step, united to as few nodes as possible. Used under the reducer's lock.

    `step`: a value that differs between steps.
    """

    def __init__(self, step: object) -> None:
        self.step = step
        self.grads: list[Grads] = []  # by node
        self._nodes: list[Node] = []

    def add(self, slot: int, grads: Sequence[torch.Tensor | None]) -> None:
        """Add the gradient of a slot, which is right of those before. All but the last one are changed by later calls."""
        values, nodes = list(grads), push(self._nodes, (0, slot))
        for _ in range(len(self._nodes) + 1 - len(nodes)):
            values = _add(self.grads.pop(), values)
        self._nodes = nodes
        self.grads.append(values)


def _add(left: Grads, right: Grads) -> Grads:
    """Return the sum, in the memory of `left` where it has any."""
    both = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    if both:
        torch._foreach_add_([a for a, _ in both], [b for _, b in both])
    return [b if a is None else a for a, b in zip(left, right, strict=True)]
