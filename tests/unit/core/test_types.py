"""Values of the protocol."""

from __future__ import annotations

import pytest

from tests.unit.core.scene import member, quorum
from torchft_x.core.types import AttemptId, Member, State, group_number, group_of


@pytest.mark.parametrize(
    ("replica_id", "group", "number"),
    [
        ("train_ddp_12:5f0c", "train_ddp_12", 12),
        ("0:x", "0", 0),
        ("cell:3:7:nonce", "cell:3:7", 7),  # only the last part is the nonce
        ("trainer:5", "trainer", None),
        ("007:x", "007", 7),
        ("no nonce", "no nonce", None),
    ],
)
def test_what_a_replica_id_tells(replica_id: str, group: str, number: int | None) -> None:
    assert group_of(replica_id) == Member(replica_id).group_id == group
    assert group_number(replica_id) == number


def test_the_top_is_the_newest_complete_state_and_carriers_hold_it() -> None:
    torn = member("c", State(9, 9), torn=True)
    q = quorum(member("a", State(4, 3)), member("b", State(4, 2)), torn, member("d", State(4, 3)))
    assert q.top == State(4, 3)
    assert [m.replica_id for m in q.carriers] == ["a", "d"]
    assert q.member("b") == member("b", State(4, 2))
    assert q.member("x") is None
    assert (quorum(torn).top, quorum(torn).carriers) == (State(), ())


def test_states_are_compared_step_first_and_attempts_number_first() -> None:
    assert sorted([State(3, 9), State(4, 1), State(4, 2), State()]) == [State(), State(3, 9), State(4, 1), State(4, 2)]
    first, second, third = AttemptId(0, 9.0), AttemptId(1, 5.0), AttemptId(1, 6.0)
    assert sorted([second, first, third]) == [first, second, third]
