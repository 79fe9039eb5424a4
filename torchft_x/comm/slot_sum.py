"""All-reduce in the fixed order of `core.data.reduction_tree`, so that the result has the same bits for any division of the slots.

Each member adds up the gradients of its slots to sums over some nodes of the tree (`SlotSums`). It sends the owner's part of each to every owner (all-to-all), the owners
add in the order of the tree, and send the result to all (broadcasts, in place).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

from torchft_x.comm.phased_work import Phases, start
from torchft_x.comm.work import AllWork
from torchft_x.core.data.reduction_tree import Node, is_pair, push, total


class Scratch:
    """Memory to receive in, kept for the next reduction: to get new memory takes as long as to send it."""

    def __init__(self) -> None:
        self._kept: Tensor | None = None

    def take(self, numel: int, like: Tensor) -> Tensor:
        """Return uninitialised memory for `numel` values, in the type and on the device of `like`."""
        if self._kept is None or self._kept.numel() < numel:
            self._kept = like.new_empty(numel)
        return self._kept[:numel]


def reduce_nodes(
    out: Tensor,
    values: Sequence[Tensor],
    nodes: Sequence[Sequence[Node]],
    slots: int,
    pg: Any,
    scratch: Scratch,
    sent: Callable[[int], None],
    still: Callable[[], bool],
) -> Work:
    """Average over all slots into `out`. The handle's ``wait()`` does half of the work.

    Args:
        out: flat result; must be equal in size and type on all members.
        values: this member's nodes, each like `out`, which may be one of them. They are overwritten.
        nodes: the nodes of each member of `pg`, which together cover each slot once.
        slots: number of slots.
        pg: a process group with ``alltoall_base`` and ``broadcast_one``.
        scratch: used until the work has ended.
        sent: called with the number of bytes that go to other members.
        still: returns whether `pg` has the members with which the call began.
    """
    return start(_phases(out, values, nodes, slots, pg, scratch, sent), [out], pg, None, still)


def _phases(
    out: Tensor,
    values: Sequence[Tensor],
    nodes: Sequence[Sequence[Node]],
    slots: int,
    pg: Any,
    scratch: Scratch,
    sent: Callable[[int], None],
) -> Phases:
    rank, world = pg.rank(), pg.size()
    bounds = [out.numel() * r // world for r in range(world + 1)]
    sizes = [b - a for a, b in pairwise(bounds)]
    size, own = sizes[rank], slice(bounds[rank], bounds[rank + 1])
    sent((len(values) * (out.numel() - size) + (world - 1) * size) * out.element_size())
    # An own part at an end of the buffer is left out of the exchange, which would only copy it. One in the middle can't be.
    others = slice(bounds[1] if rank == 0 else 0, bounds[rank] if rank == world - 1 else None)
    if rank in (0, world - 1):
        sizes[rank] = 0
    parts: dict[Node, Tensor] = {}
    works = []
    free = scratch.take(size * sum(map(len, nodes)), out)
    for k in range(max(map(len, nodes))):  # node k of each member that has so many
        sends = k < len(values)
        counts = [size if k < len(its) else 0 for its in nodes]
        counts[rank] = min(counts[rank], sizes[rank])
        received, free = free[: sum(counts)], free[sum(counts) :]
        send = values[k][others] if sends else out[:0]
        works.append(pg.alltoall_base(received, send, counts, sizes if sends else [0] * world))
        parts |= {its[k]: part for its, part in zip(nodes, received.split(counts), strict=True) if k < len(its)}
    parts |= {node: value[own] for node, value in zip(nodes[rank], values, strict=True)}
    yield AllWork(works, out)
    # Nodes are not divided, as rounding would then depend on which nodes a member has.
    torch.mul(total(parts, slots, Tensor.add_), 1.0 / slots, out=out[own])
    yield AllWork([pg.broadcast_one(out[a:b], r) for r, (a, b) in enumerate(pairwise(bounds)) if a < b], out)


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
