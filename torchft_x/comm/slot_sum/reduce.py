"""All-reduce in the fixed order of `core.data.reduction_tree`, so that the result has the same bits for any division of the slots.

Each member holds sums over some nodes of the tree. It sends the owner's part of each to every owner (all-to-all), the owners
add in the order of the tree, and every member gets all parts (all-to-all).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

from torchft_x.comm.phased_work import Phases, start
from torchft_x.core.data.reduction_tree import Node, total


class Scratch:
    """Memory of one reduction that is kept for the next one: to get new memory takes as long as to send it."""

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
        values: this member's nodes, each like `out`, which may be one of them.
        nodes: the nodes of each member of `pg`, which together cover each slot once.
        slots: number of slots.
        pg: a process group with ``alltoall_base``.
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
    sizes = [bounds[r + 1] - bounds[r] for r in range(world)]
    mine = slice(bounds[rank], bounds[rank + 1])
    counts = [len(n) * sizes[rank] for n in nodes]
    space = scratch.take(sum(counts) + (out.numel() * len(values) if len(values) > 1 else 0), out)
    received = space[: sum(counts)]
    if len(values) == 1:
        send = values[0]
    else:
        send = space[sum(counts) :]
        if values:
            torch.cat([v[bounds[r] : bounds[r + 1]] for r in range(world) for v in values], out=send)
    sent((len(values) * (out.numel() - sizes[rank]) + (world - 1) * sizes[rank]) * out.element_size())
    yield pg.alltoall_base(received, send, counts, [len(values) * s for s in sizes])
    parts = received.split(sizes[rank]) if sizes[rank] else [received] * sum(map(len, nodes))
    by_node = dict(zip((node for its in nodes for node in its), parts, strict=True))
    # Nodes are not divided, as rounding would then depend on which nodes a member has.
    out[mine] = total(by_node, slots, Tensor.add_).mul_(1.0 / slots)
    copies = scratch.take(world * sizes[rank], out)
    copies.view(world, sizes[rank]).copy_(out[mine])
    yield pg.alltoall_base(out, copies, sizes, [sizes[rank]] * world)
