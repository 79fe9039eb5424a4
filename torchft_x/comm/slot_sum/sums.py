"""Sums of a step's local gradients over nodes of `core.data.tree`, so that the step's result does not depend on who has which slot."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchft_x.core.data.tree import Node, is_pair


class SlotSums:
    """Flat gradients of the slots of one step, united to as few nodes as possible. Used under the reducer's lock.

    `step`: a value that differs between steps.
    """

    def __init__(self, step: object) -> None:
        self.step = step
        self.nodes: list[Node] = []
        self._flats: list[list[torch.Tensor]] = []  # by node, one tensor per bucket

    def add(self, slot: int, flats: Sequence[torch.Tensor]) -> None:
        """Add the gradient of a slot, which is right of those before."""
        node, values = (0, slot), [flat.clone() for flat in flats]
        while self.nodes and is_pair(self.nodes[-1], node):
            level, index = self.nodes.pop()
            left = self._flats.pop()
            torch._foreach_add_(left, values)
            node, values = (level + 1, index // 2), left
        self.nodes.append(node)
        self._flats.append(values)

    def values(self, bucket: int) -> list[torch.Tensor]:
        """Return the sums of a bucket, by node."""
        return [flats[bucket] for flats in self._flats]
