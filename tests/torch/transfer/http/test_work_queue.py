from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchft_x.transfer.http.work_queue import GRACE, SLOW, WorkQueue


def test_streams_that_begin_together_share_alike() -> None:
    queue = WorkQueue(10)
    assert queue.take(0, 0.0, among=3) == (0, 4)
    assert queue.take(1, 0.0, among=2) == (4, 7)
    assert queue.take(2, 0.0, among=1) == (7, 10)


def test_who_has_nothing_takes_half_of_what_the_one_with_most_has_not_begun() -> None:
    queue = WorkQueue(100)
    assert queue.take(0, 0.0, among=2) == (0, 50)
    assert queue.take(1, 0.0) == (50, 100)
    for _ in range(11):
        assert queue.arrived(0, 1.0)
    # Block 50 is in flight; of the 49 behind it the later 25 go.
    assert queue.take(2, 1.0) == (75, 100)
    assert queue.take(3, 1.0) == (31, 50)


def test_what_is_given_back_is_taken_first() -> None:
    queue = WorkQueue(100)
    queue.take(0, 0.0, among=2)
    queue.take(1, 0.0)
    queue.arrived(0, 1.0)
    queue.give_back(0)
    assert queue.take(1 + 1, 1.0) == (1, 50)
    queue.give_back(0)  # it holds nothing


@pytest.mark.parametrize("took", [1.0, 0.001])
def test_who_needs_far_longer_for_a_block_and_than_the_grace_is_overdue(took: float) -> None:
    queue = WorkQueue(2)
    queue.take(0, 0.0, among=2)
    queue.take(1, 0.0)
    queue.arrived(1, took)
    limit = max(SLOW * took, GRACE)
    assert queue.overdue(1, limit - 0.1) == []
    assert queue.overdue(1, limit + 0.1) == [0]
    assert queue.overdue(7, GRACE + 0.1) == [], "who has fetched nothing can't say what is slow"


@given(st.integers(0, 60), st.integers(1, 6), st.randoms(use_true_random=False))
def test_every_block_arrives_once_and_has_one_owner_at_a_time(blocks: int, streams: int, random: object) -> None:
    queue = WorkQueue(blocks)
    held: dict[int, int] = {}  # stream -> the block it has in flight
    arrived: set[int] = set()
    for now in range(100_000):
        if queue.over:
            break
        stream = random.randrange(streams)  # type: ignore[attr-defined]
        if stream not in held:
            part = queue.take(stream, now, random.randrange(1, 4))  # type: ignore[attr-defined]
            if part is not None:
                assert 0 <= part[0] < part[1] <= blocks
                assert part[0] not in held.values()
                held[stream] = part[0]
        elif random.random() < 0.1:  # type: ignore[attr-defined]
            queue.give_back(stream)
            del held[stream]
        else:
            assert held[stream] not in arrived
            arrived.add(held[stream])
            held[stream] += 1
            if not queue.arrived(stream, now):
                del held[stream]
    assert arrived == set(range(blocks))
