"""Quorums and losses with their reasons, and what each loss cost."""

from __future__ import annotations

import pytest

from tests.unit.core.scene import member, quorum
from torchft_x.core.messages import Note
from torchft_x.core.types import Quorum, State
from torchft_x.observe.view.history import KEPT, History


def of(*names: str, id: int, step: int = 0, **fields: object) -> Quorum:
    return quorum(*(member(f"{name}:x", State(step, 1)) for name in names), id=id, number=id, **fields)


def lost(name: str, cause: str = "exited") -> Note:
    return Note("member_lost", f"{name}:x is lost: its process ended with exit code -9.", f"{name}:x", 1, cause=cause)


def test_a_death_from_the_loss_to_the_return() -> None:
    h = History()
    h.issued(of("0", "1", id=1), 0.25, 100.0)
    h.noted(lost("1"), of("0", "1", id=1), 41, 110.0)
    h.exited("1", "worker 0 killed by SIGKILL", 110.02)
    assert h.out["1"].exit == "worker 0 killed by SIGKILL"
    h.issued(of("0", id=2, step=41), 0.01, 110.05)
    h.issued(of("0", "1", id=3, step=60), 0.01, 114.0)
    assert [q.reason for q in h.quorums] == ["the first quorum: groups 0, 1", "group 1 was lost", "group 1 joined"]
    loss = h.losses[0]
    assert (loss.group, loss.cause, loss.exit, loss.step) == ("1", "exited", "worker 0 killed by SIGKILL", 41)
    assert (loss.regrouped, loss.rejoined) == (pytest.approx(0.05), pytest.approx(4.0))
    assert h.causes == {"exited": 1}
    assert (h.recovery.sum, h.rejoin.sum) == (pytest.approx(0.05), pytest.approx(4.0))
    assert h.out == {}


def test_who_leaves_is_not_lost() -> None:
    h = History()
    h.noted(Note("adopted", "Adopted."), of("0", "1", id=1), 3, 1.0)  # a quorum that was going on before
    h.issued(of("0", "1", "2", id=2), 0.0, 100.0)
    assert h.quorums[-1].reason == "group 2 joined"
    h.noted(lost("1", "left"), None, 5, 101.0)
    h.noted(lost("2"), None, 5, 101.0)
    h.issued(of("0", "3", id=3), 0.0, 101.1)
    assert h.quorums[-1].reason == "group 2 was lost, group 1 left, group 3 joined"
    h.noted(lost("3"), None, 5, 102.0)
    h.issued(of("0", "3", id=4), 0.0, 104.0)  # it is back before there was a quorum without it
    assert (h.losses[-1].rejoined, h.quorums[-1].reason) == (2.0, "group 3 joined")


def test_a_quorum_of_the_same_members_is_counted_and_no_entry() -> None:
    h = History()
    h.issued(of("0", id=1), 0.0, 1.0)
    h.issued(of("0", id=2, config_id=1), 0.0, 2.0)
    assert (h.count["quorums"], h.count["regroupings"], len(h.quorums)) == (2, 1, 1)
    h.issued(of("0", id=3), 0.0, 3.0)
    assert h.quorums[-1].reason.startswith("the same groups")


def test_a_new_lineage_says_what_was_lost() -> None:
    h = History()
    h.issued(of("0", id=1), 0.0, 1.0)
    h.noted(Note("new_lineage", "A new lineage begins.", steps=7), None, 9, 2.0)
    h.issued(of("0", id=2), 0.0, 2.0)
    assert h.quorums[-1].reason == "A new lineage begins."
    assert (h.count["lineages"], h.count["undone"]) == (1, 7)


def test_everything_is_bounded() -> None:
    h = History()
    for n in range(3 * KEPT):
        h.noted(lost(str(n)), None, 0, float(n))
        h.refused("", "no", float(n))
    h.issued(of(*map(str, range(150)), id=1), 0.0, 1e3)
    assert (len(h.losses), len(h.refusals)) == (KEPT, KEPT // 5)
    assert len(h.out) == KEPT  # 200 to 299
    assert len(h.quorums[-1].joined) == 16
    assert h.recovery.buckets()[-1][1] == KEPT
