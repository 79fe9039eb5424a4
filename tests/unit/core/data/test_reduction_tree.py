"""The sum over slots is made of the same additions whoever has which slot."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchft_x.core.data.deal import Claim, deal
from torchft_x.core.data.options import DataOptions, Policy
from torchft_x.core.data.reduction_tree import Node, is_pair, nodes_of, total


def term(node: Node, slots: int) -> str:
    """Write the sum of a node with brackets for each addition."""
    level, index = node
    if not level:
        return str(index)
    left, right = (level - 1, 2 * index), (level - 1, 2 * index + 1)
    return f"({term(left, slots)}+{term(right, slots)})" if right[1] << right[0] < slots else term(left, slots)


def test_a_range_consists_of_few_nodes() -> None:
    assert nodes_of(((0, 8),)) == [(3, 0)]
    assert nodes_of(((1, 7),)) == [(0, 1), (1, 1), (1, 2), (0, 6)]
    assert len(nodes_of(((1, 1023),))) == 18
    assert nodes_of(()) == []


@given(st.integers(1, 40), st.integers(1, 9), st.lists(st.integers(1, 5), min_size=9, max_size=9))
def test_any_deal_gives_the_same_additions(slots: int, groups: int, weights: list[int]) -> None:
    shared = deal(DataOptions(Policy.STRICT, slots, 1), [Claim((), w) for w in weights[:groups]])
    nodes = [node for number in range(groups) for node in nodes_of(shared.share(number))]
    values = {node: term(node, slots) for node in nodes}
    whole = term(((slots - 1).bit_length(), 0), slots)
    assert total(values, slots, lambda a, b: f"({a}+{b})") == whole


def test_pairs_have_one_parent() -> None:
    assert is_pair((1, 2), (1, 3))
    assert not is_pair((1, 1), (1, 2))
    assert not is_pair((0, 2), (1, 3))
