"""Each sample is committed once per epoch, whatever is dropped, lost or redone."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchft_x.core.data.deal import Claim, deal
from torchft_x.core.data.options import DataOptions, Policy, Tail
from torchft_x.core.data.permutation import permute
from torchft_x.core.data.ranges import cut, members, overlap, ranges, size, without
from torchft_x.core.data.state import DataState, StreamState, read_position, samples
from torchft_x.core.types import Ranges
from torchft_x.errors import ConfigError


def options(tail: Tail = Tail.WRAP, slots: int = 4, batch: int = 3) -> DataOptions:
    return DataOptions(Policy.CONSTANT, slots, batch, tail)


def test_what_a_commit_leaves_out_is_trained_first() -> None:
    data = DataState(0, 100).commit(((0, 1), (3, 4)), options())
    assert (data.cursor, data.debt, data.owed) == (12, ((0, 3, 9),), 6)
    assert [data.slot(s, options()) for s in range(3)] == [((0, 3, 6),), ((0, 6, 9),), ((0, 12, 15),)]
    assert data.commit(((0, 4),), options()) == DataState(0, 100, cursor=18)


@pytest.mark.parametrize("tail", list(Tail))
def test_the_samples_committed_so_far_are_counted(tail: Tail) -> None:
    some = options(tail)  # steps of 12 samples; 40 of an epoch, or 36 with DROP
    data = DataState(0, 40)
    for slots in [((0, 4),), ((1, 4),), ((0, 2), (3, 4)), ((0, 4),), ((0, 4),)]:
        before, trained = data.committed(some), data.present(slots, some)
        samples = sum(stop - start for s in members(trained) for _, start, stop in data.slot(s, some))
        data = data.commit(slots, some)
        assert data.committed(some) == before + samples


def test_slots_behind_the_last_committed_one_are_not_debt() -> None:
    assert DataState(0, 100).commit(((0, 2),), options()) == DataState(0, 100, cursor=6)


def test_the_next_epoch_fills_the_last_step() -> None:
    data = DataState(0, 10, cursor=6)
    assert data.slot(1, options()) == ((0, 9, 10), (1, 0, 2))
    assert data.commit(((0, 4),), options()) == DataState(0, 10, epoch=1, cursor=8)
    lost = data.commit(((0, 1), (2, 4)), options())
    assert lost.debt == ((0, 9, 10), (1, 0, 2))
    assert lost.completed == 0


def test_a_short_epoch_ends_with_full_slots_and_then_one_of_the_rest() -> None:
    short = options(Tail.SHORT)
    data = DataState(0, 20, cursor=12)
    assert data.present(((0, 4),), short) == ((0, 2),)
    data = data.commit(((0, 4),), short)
    assert (data.present(((0, 4),), short), data.slot(0, short)) == (((0, 1),), ((0, 18, 20),))
    assert data.commit(((0, 1),), short) == DataState(0, 20, epoch=1)


def test_a_short_epoch_lasts_until_its_debt_is_trained() -> None:
    short = options(Tail.SHORT)
    data = DataState(0, 12).commit(((0, 1), (2, 4)), short)
    assert (data.epoch, data.debt, data.completed) == (0, ((0, 3, 6),), 0)
    assert data.commit(((0, 4),), short) == DataState(0, 12, epoch=1)


def test_dropped_samples_are_those_that_fill_no_step() -> None:
    assert options(Tail.DROP).used(30) == 24
    assert DataState(0, 30, cursor=12).commit(((0, 4),), options(Tail.DROP)) == DataState(0, 30, epoch=1)
    # a run before this one had smaller steps, and used more of the epoch
    assert DataState(0, 30, cursor=27).commit(((0, 4),), options(Tail.DROP)) == DataState(0, 30, epoch=1, cursor=12)


@given(
    length=st.integers(1, 120),
    slots=st.integers(1, 9),
    batch=st.integers(1, 5),
    policy=st.sampled_from(Policy),
    tail=st.sampled_from(Tail),
    data=st.data(),
)
def test_I10_each_sample_once(
    length: int, slots: int, batch: int, policy: Policy, tail: Tail, data: st.DataObject
) -> None:
    """Random groups compute, are lost, redo, drop and commit; what the commits count is every sample of an epoch once."""
    how = DataOptions(policy, slots, batch, tail)
    used, state, count = how.used(length), DataState(0, length), Counter[tuple[int, int]]()
    if not used:
        return
    for _ in range(12):
        groups = data.draw(st.integers(1, 4))
        now = deal(how, [Claim((), data.draw(st.integers(1, 3))) for _ in range(groups)])
        shares = [now.share(i) for i in range(groups)]
        for _ in range(data.draw(st.integers(0, 2))):  # losses inside the step, and newcomers
            stay = data.draw(st.lists(st.sampled_from(range(len(shares))), unique=True))
            new = data.draw(st.integers(0 if stay else 1, 2))
            now = deal(how, [Claim(shares[i]) for i in sorted(stay)] + [Claim()] * new)
            shares = [now.share(i) for i in range(len(stay) + new)]
        assert members(now.slots) == sorted(slot for share in shares for slot in members(share))
        if data.draw(st.booleans()):
            continue  # the step is dropped
        for slot in members(state.present(now.slots, how)):
            count.update(samples(state.slot(slot, how)))
        state = state.commit(now.slots, how)
        assert DataState.from_json(state.to_json()) == state
    assert all(count[epoch, p] == 1 for epoch in range(state.completed) for p in range(used))
    assert max(count.values(), default=1) == 1


def test_the_state_is_small() -> None:
    """A thousand groups, 10^9 samples; ten groups that are no neighbours are lost in one step."""
    how = DataOptions(Policy.CONSTANT, 4000, 8)
    now = deal(how, [Claim()] * 1000)
    state = DataState(2**40, 10**9, "d" * 64, epoch=7, cursor=987_654_321)
    left = ranges(pair for i in range(1000) if i % 100 for pair in now.share(i))
    assert len(state.commit(left, how).to_json()) < 1024


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '[2,0,5,"",0,0,[],0]',
        '[1,0,5,"",0,6,[],0]',
        '[1,0,5,"",0,0,[[0,3,3]],0]',
        '[1,0,true,"",0,0,[],0]',
    ],
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no position in a data set"):
        DataState.from_json(text)


def test_another_data_set_is_refused_with_the_difference() -> None:
    with pytest.raises(ConfigError, match="samples 10 there, 11 here"):
        DataState(0, 10).check_same(DataState(0, 11))
    with pytest.raises(ConfigError, match="the seed 0 there, 1 here"):
        DataState(0, 10).check_same(DataState(1, 10))
    DataState(0, 10, cursor=4).check_same(DataState(0, 10))


@pytest.mark.parametrize("length", [1, 2, 3, 10, 97, 100, 1000])
def test_the_permutation_is_one(length: int) -> None:
    assert sorted(permute(p, length, 5, 2) for p in range(length)) == list(range(length))


def test_epochs_and_seeds_have_other_orders() -> None:
    orders = {tuple(permute(p, 50, seed, epoch) for p in range(50)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16
    with pytest.raises(ValueError, match="not in an epoch"):
        permute(50, 50, 0, 0)


def test_the_order_is_even() -> None:
    """Neighbours in the order are no neighbours in the data set, and each tenth of the epoch has its share of each tenth of it."""
    order = [permute(p, 10_000, 1, 0) for p in range(10_000)]
    table = Counter((p // 1000, sample // 1000) for p, sample in enumerate(order))
    chi_square = sum((table[i, j] - 100) ** 2 / 100 for i in range(10) for j in range(10))
    assert 40 < chi_square < 140  # 81 degrees of freedom: each bound is exceeded once in more than 10^4 seeds
    assert sum(abs(a - b) == 1 for a, b in itertools.pairwise(order)) < 12


pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=5)


def whole(of: Ranges) -> set[int]:
    return set(members(of))


@given(pairs, pairs)
def test_ranges_are_sets(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = ranges(one), ranges(other)
    assert whole(a) == {i for low, high in one for i in range(low, high)}
    assert size(a) == len(whole(a))
    assert whole(without(a, b)) == whole(a) - whole(b)
    assert overlap(a, b) == bool(whole(a) & whole(b))
    parts = cut(a, [2, 0, 100])
    assert [size(part) for part in parts] == [min(2, size(a)), 0, max(0, size(a) - 2)]
    assert whole(ranges(pair for part in parts for pair in part)) == whole(a)


OPTIONS = DataOptions(Policy.CONSTANT, 3, 1)


def test_streams_that_are_left_out_stay() -> None:
    state = StreamState((0, 4, 4)).commit(((0, 1), (2, 3)), OPTIONS)
    assert state == StreamState((1, 4, 5))
    assert (state.committed(OPTIONS), state.owed) == (10, 0)


@pytest.mark.parametrize("position", [StreamState((0, 7)), DataState(1, 10, "d", 2, 3, ((1, 0, 4),))])
def test_a_position_survives_as_text(position: DataState | StreamState) -> None:
    assert read_position(position.to_json()) == position


def test_a_position_of_other_data_is_refused() -> None:
    StreamState((1, 2)).check_same(StreamState((0, 0)))
    with pytest.raises(ConfigError, match="one in 1 streams, and this run has 2"):
        StreamState((1,)).check_same(StreamState((0, 0)))
    with pytest.raises(ConfigError, match="the other way round"):
        StreamState((1,)).check_same(DataState(0, 10))
    with pytest.raises(ConfigError, match="the other way round"):
        DataState(0, 10).check_same(StreamState((1,)))
    with pytest.raises(ConfigError, match="no position"):
        read_position('["streams", [1, -2]]')
