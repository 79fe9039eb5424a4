"""Sum the values of a step's slots in an order that does not depend on which group has which slots.

The slots are the leaves of a binary tree. Node (level, i) is the sum over slots i * 2**level to (i + 1) * 2**level. It is
computed as the sum of its two children, or of the left one if the right one has no slots. Floating point addition is not
associative, but each node is always the sum of the same two values. A group computes the nodes within its own slots by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from torchft_x.core.data.ranges import members
from torchft_x.core.types import Ranges

Node = tuple[int, int]
"""Level above the slots, and index within the level."""
T = TypeVar("T")


def nodes_of(slots: Ranges) -> list[Node]:
    """Return the largest nodes that lie within these slots, in their order."""
    nodes: list[Node] = []
    for slot in members(slots):
        nodes = push(nodes, (0, slot))
    return nodes


def push(nodes: list[Node], node: Node) -> list[Node]:
    """Return `nodes` with one more to their right, after uniting right siblings with left ones."""
    while nodes and is_pair(nodes[-1], node):
        nodes, node = nodes[:-1], (node[0] + 1, node[1] // 2)
    return [*nodes, node]


def is_pair(left: Node, right: Node) -> bool:
    """Return whether two nodes are the children of one."""
    return left[0] == right[0] and left[1] % 2 == 0 and right[1] == left[1] + 1


def total(values: Mapping[Node, T], slots: int, add: Callable[[T, T], T]) -> T:
    """Return the sum over all `slots` from the values of nodes that cover each slot once. `add` may change its first value."""

    def value(node: Node) -> T | None:
        if node in values:
            return values[node]
        level, index = node
        if not level or index << level >= slots:
            return None
        left, right = value((level - 1, 2 * index)), value((level - 1, 2 * index + 1))
        return left if right is None or left is None else add(left, right)

    found = value(((slots - 1).bit_length(), 0))
    assert found is not None, "some slot has a value"
    return found
