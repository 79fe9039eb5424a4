from __future__ import annotations

import pytest

from torchft_x.core import heal
from torchft_x.core.types import Member, Quorum, by_rank

OURS = "torchft_x/1"


@pytest.mark.parametrize(
    ("groups", "libraries", "expected"),
    [
        (["10", "2", "0", "11"], {OURS}, ["0", "2", "10", "11"]),
        (["train_10", "train_9", "eval_11"], {OURS}, ["eval_11", "train_9", "train_10"]),
        (["b", "a", "3"], {OURS}, ["3", "a", "b"]),
        (["10", "2", "0"], {OURS, ""}, ["0", "10", "2"]),
        (["10", "2", "0"], {""}, ["0", "10", "2"]),
    ],
)
def test_groups_are_numbered_by_number_unless_a_client_of_torchft_is_among_them(
    groups: list[str], libraries: set[str], expected: list[str]
) -> None:
    named = [*libraries] * len(groups)
    members = [Member(f"{group}:x", library=library) for group, library in zip(groups, named, strict=False)]
    assert [m.group_id for m in by_rank(members)] == expected
    plans = [heal.plan(Quorum(1, 1, 1, tuple(members)), m.replica_id, 0, init_sync=False) for m in members]
    assert sorted(plans, key=lambda p: p.replica_rank)[0].replica_ids == tuple(f"{group}:x" for group in expected)
    assert [p.replica_ids[p.replica_rank] for p in plans] == [m.replica_id for m in members]


def test_two_attempts_of_one_group_have_one_order() -> None:
    members = [Member(f"1:{nonce}", library=OURS) for nonce in "ba"]
    assert by_rank(members) == by_rank(reversed(members))
