"""Sums of a step's local gradients over nodes of `core.data.reduction_tree`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchft_x.core.data.reduction_tree import Node, is_pair, push

Grads = list[torch.Tensor | None]
"""Gradients by parameter; None where the loss does not depend on the parameter."""


class SlotSums:
    """Gradients of the slots of a step, united to as few nodes as possible. Used under the reducer's lock.

    Backward adds a gradient to the ``p.grad`` that it finds, so that two slots are not summed in a pass of its own: `left`.
    """

    def __init__(self) -> None:
        self.start(None)

    def start(self, step: object) -> None:
        """Begin the sums of a step. `step` is a value that differs between steps."""
        self.step = step
        self.grads: list[Grads] = []  # by node
        self._nodes: list[Node] = []

    def left(self, slot: int) -> Grads:
        """Return the sums of the left sibling of `slot`, the next one, to which backward may add; [] if it has none."""
        return self.grads[-1] if self._nodes and is_pair(self._nodes[-1], (0, slot)) else []

    def add(self, slot: int, grads: Sequence[torch.Tensor | None]) -> None:
        """Add the gradient of a slot, which is right of those before. Later calls change it.

        A tensor of the left sibling has the gradient already.
        """
        values, nodes = list(grads), push(self._nodes, (0, slot))
        for _ in range(len(self._nodes) + 1 - len(nodes)):
            values = _add(self.grads.pop(), values)
        self._nodes = nodes
        self.grads.append(values)


def _add(left: Grads, right: Grads) -> Grads:
    """Return the sum, in the memory of `left` where it has any. Tensors of `left` in `right` are sums already."""
    both = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None and a is not b]
    if both:
        torch._foreach_add_([a for a, _ in both], [b for _, b in both])
    return [b if a is None else a for a, b in zip(left, right, strict=True)]
