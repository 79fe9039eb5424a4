"""Sums of a step's local gradients over nodes of `core.data.reduction_tree`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from torchft_x.core.data.reduction_tree import Node, is_pair, push

Grads = list[torch.Tensor | None]
"""Gradients by parameter; None where the loss does not depend on the parameter."""


class SlotSums:
    """Gradients of the slots of a step, united to as few nodes as possible. Used under the reducer's lock.

    Backward adds a gradient to the ``p.grad`` that it finds. `room` returns tensors for that, so that neither new memory is
    taken for each slot nor the sum of two slots computed in a pass of its own.
    """

    def __init__(self) -> None:
        self.step: object = None  # a value that differs between steps
        self.grads: list[Grads] = []  # by node
        self._nodes: list[Node] = []
        self._spare: list[Grads] = []  # memory for further gradients
        self._most = 0  # largest number of nodes that had memory at the same time

    def start(self, step: object, in_use: Collection[int]) -> None:
        """Begin the sums of a step. `in_use`: ids of tensors whose memory is not ours now."""
        kept = [[None if id(t) in in_use else t for t in grads] for grads in [*self._spare, *self.grads]]
        self._spare = kept[: self._most]
        self.step, self.grads, self._nodes = step, [], []

    def room(self, slot: int) -> Grads:
        """Return tensors to which backward may add the gradient of `slot`, the next one; None where there are none.

        These are the sums of the slot's left sibling, else tensors of negative zeros: adding to 0.0 would change -0.0.
        """
        if self._nodes and is_pair(self._nodes[-1], (0, slot)):
            return self.grads[-1]
        self._most = max(self._most, len(self._nodes) + 1)
        room = self._spare.pop() if self._spare else []
        return [t.fill_(-0.0) if t is not None and t.is_floating_point() else None for t in room]

    def add(self, slot: int, grads: Sequence[torch.Tensor | None]) -> None:
        """Add the gradient of a slot, which is right of those before. Later calls change all but the last one.

        A tensor of the left sibling, which `room` has returned, has the gradient already.
        """
        values, nodes = list(grads), push(self._nodes, (0, slot))
        for _ in range(len(self._nodes) + 1 - len(nodes)):
            left = self.grads.pop()
            unused = [None if a is None or a is b else b for a, b in zip(left, values, strict=True)]
            if len(self._spare) < self._most and any(t is not None for t in unused):
                self._spare.append(unused)
            values = _add(left, values)
        self._nodes = nodes
        self.grads.append(values)


def _add(left: Grads, right: Grads) -> Grads:
    """Return the sum, in the memory of `left` where it has any. Tensors of `left` in `right` are sums already."""
    both = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None and a is not b]
    if both:
        torch._foreach_add_([a for a, _ in both], [b for _, b in both])
    return [b if a is None else a for a, b in zip(left, right, strict=True)]
