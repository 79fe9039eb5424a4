"""Quorums and losses with their reasons, and what each loss cost."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.unit.core.scene import member, quorum
from torchft_x.core.messages import Note
from torchft_x.core.types import Quorum, State
from torchft_x.observe.view.facts import COMMITTED, HEALED, RELEASED, RESTARTED, Moment
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


def killed() -> History:
    """Groups 0, 1 and 2 train; at 110 s group 1 is lost, and the others have another quorum at 110.05."""
    h = History()
    h.issued(of("0", "1", "2", id=1), 0.25, 100.0)
    h.record_moments("0:x", [Moment(what=COMMITTED, quorum=1, participants=3, ago=0.1)], 101.0)
    h.noted(lost("1"), of("0", "1", "2", id=1), 41, 110.0)
    h.issued(of("0", "2", id=2, step=41), 0.01, 110.05)
    return h


def test_a_death_phase_by_phase() -> None:
    h = killed()
    h.record_moments("0:x", [Moment(what=RELEASED, quorum=1, ago=0.28)], 110.3)
    h.record_moments("2:x", [Moment(what=RELEASED, quorum=1, ago=0.27)], 110.3)
    h.record_moments("2:x", [Moment(what=COMMITTED, quorum=2, participants=2, ago=0.1, took=0.3)], 110.3)
    h.record_moments("0:x", [Moment(what=COMMITTED, quorum=2, participants=2, ago=0.2, took=0.2)], 110.3)
    h.record_moments("1:y", [Moment(what=RESTARTED, ago=0.5)], 113.5)
    h.issued(of("0", "1", "2", id=3, step=60), 0.01, 114.0)
    h.record_moments("1:y", [Moment(what=HEALED, ago=0.1, took=0.4)], 114.6)
    h.record_moments("0:x", [Moment(what=COMMITTED, quorum=3, participants=2, ago=0.0)], 114.2)
    h.record_moments("1:y", [Moment(what=COMMITTED, quorum=3, participants=3, ago=0.0)], 115.0)
    loss = h.losses[0]
    phases = (loss.released, loss.regrouped, loss.committed, loss.restarted, loss.rejoined, loss.healed, loss.back)
    assert phases == pytest.approx((0.03, 0.05, 0.1, 3.0, 4.0, 4.5, 5.0), abs=1e-6)
    assert (loss.stood, loss.whole) == (0.2, 5.0)


def test_what_is_told_of_another_quorum_or_attempt_says_nothing() -> None:
    h = killed()
    before = asdict(h.losses[0])
    h.record_moments("0:x", [Moment(what=RELEASED, quorum=7, ago=0.0), Moment(what="born", ago=0.0)], 110.1)
    h.record_moments("0:x", [Moment(what=COMMITTED, quorum=1, participants=3, ago=0.0)], 110.1)  # that came late
    # The attempt that was lost.
    h.record_moments("1:x", [Moment(what=RESTARTED, ago=0.0), Moment(what=HEALED, ago=0.0)], 110.1)
    assert asdict(h.losses[0]) == before


def test_a_second_death_of_the_same_group_gets_what_its_next_attempt_tells() -> None:
    h = killed()
    h.issued(of("0", "1", "2", id=3), 0.0, 112.0)
    h.noted(lost("1"), of("0", "1", "2", id=3), 50, 113.0)
    h.record_moments("1:z", [Moment(what=RESTARTED, ago=0.0)], 115.0)
    first, second = h.losses
    assert (first.restarted, second.restarted) == (None, 2.0)


@pytest.mark.parametrize("own_first", [False, True])
def test_a_message_that_comes_late_does_not_turn_the_phases_round(own_first: bool) -> None:
    h = killed()
    # The quorum was noted late.
    h.record_moments("0:x", [Moment(what=COMMITTED, quorum=2, participants=2, ago=0.05)], 110.09)
    assert h.losses[0].committed == h.losses[0].regrouped == pytest.approx(0.05)
    h.issued(of("0", "1", "2", id=3, step=60), 0.01, 114.0)
    h.record_moments("1:y", [Moment(what=HEALED, ago=0.5)], 114.4)
    assert h.losses[0].healed == 4.0
    # It is in a quorum by then, so it was ready before.
    h.record_moments("1:y", [Moment(what=RESTARTED, ago=0.1)], 114.4)
    words = [("0:x", 114.2), ("1:y", 114.3)]
    for name, t in reversed(words) if own_first else words:
        h.record_moments(name, [Moment(what=COMMITTED, quorum=3, participants=3, ago=0.0)], t)
    loss = h.losses[0]
    assert (loss.restarted, loss.rejoined) == (4.0, 4.0)
    assert (loss.back, loss.whole) == pytest.approx((4.3, 4.3))
