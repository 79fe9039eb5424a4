"""observe/console: events in, sentences and counters out."""

from __future__ import annotations

from typing import Any

import pytest

from torchft_x.core.types import by_number
from torchft_x.observe.console import Story


def quorum(mono: float, *groups: str, step: int = 0, healing: tuple[str, ...] = ()) -> dict[str, Any]:
    members, copying = ([f"{g}:x" for g in named] for named in (groups, healing))
    return {"event": "quorum", "mono": mono, "step": step, "members": members, "healing": copying}


def commit(mono: float, step: int, quorum: int = 1) -> dict[str, Any]:
    """The commit after which `step` steps are committed; events name a step by the commits before it."""
    return {"event": "commit", "mono": mono, "step": step - 1, "quorum": quorum}


def lost(mono: float, *groups: str, reason: str = "connection lost") -> dict[str, Any]:
    return {"event": "member_lost", "mono": mono, "lost": [f"{g}:x" for g in groups], "reason": reason}


def tell(story: Story, *events: dict[str, Any]) -> list[str]:
    return [line for event in events for line in story.sentences(event)]


def test_a_quiet_run_says_nothing() -> None:
    story = Story("0")
    assert tell(story, quorum(0, "0", "1"), commit(1, 1), commit(2, 2)) == []
    assert (story.step, story.dropped, story.lost) == (2, 0, 0.0)


def test_who_has_said_goodbye_did_not_die() -> None:
    story = Story("0")
    tell(story, quorum(0, "0", "1"), commit(1.0, 1))
    assert tell(story, {**lost(1.25, "1"), "reason": "in any words", "left": True}) == ["group 1 left at step 1"]
    tell(story, quorum(2, "0", "2"))
    early = {**lost(2.25, "2"), "reason": "2:x has left before the end of the training.", "left": True}
    assert tell(story, early) == ["group 2 left before the end of the training at step 0"]


def test_a_death_its_cost_and_the_return() -> None:
    story = Story("0")
    tell(story, quorum(0, "0", "1"), commit(1.0, 1), commit(1.1, 2), commit(1.2, 3))
    lines = tell(
        story,
        lost(1.25, "1"),
        {"event": "drop", "mono": 1.26, "step": 3, "reason": "a collective was released"},
        quorum(1.3, "0", step=3),
        commit(1.6, 4, quorum=2),
        commit(1.7, 5),
        quorum(5.0, "0", "1", step=5, healing=("1",)),
        commit(5.1, 6),
        quorum(5.25, "0", "1", step=6),
    )
    assert lines == [
        "group 1 died (connection lost) at step 3",
        "step 4 dropped; it is run again",
        "training goes on at step 4 with 1 group: 0.30 s lost",
        "group 1 rejoined at step 6 (4.0 s after it was lost)",
    ]
    assert (story.rejoins, story.dropped) == (1, 1)
    assert story.lost == pytest.approx(0.3)


def test_the_lowest_living_participant_speaks() -> None:
    story = Story("2")
    assert story.speaks  # alone until a quorum says otherwise
    tell(story, quorum(0, "10", "2", "1"))
    assert not story.speaks
    tell(story, lost(1, "1"))
    assert story.speaks  # 2 comes before 10
    tell(story, quorum(2, "10", "2", "1", healing=("1",)))
    assert story.speaks  # 1 is back but still copies its state
    tell(story, quorum(3, "10", "2", "1"))
    assert not story.speaks


def test_a_member_that_is_missing_without_notice_is_told_once() -> None:
    story = Story("0")
    tell(story, quorum(0, "0", "1", "2"), lost(1, "1"))
    assert tell(story, quorum(2, "0", step=7)) == ["group 2 died (connection lost) at step 0"]
    assert tell(story, lost(3, "1", "2")) == []
    assert len(story.died) == 2


def test_a_member_that_is_missing_after_a_good_step_has_left() -> None:
    story = Story("0")
    tell(story, quorum(0, "0", "1"), commit(1, 1))
    assert tell(story, quorum(2, "0", step=1)) == ["group 1 is gone at step 1"]


def test_a_group_that_is_new_joins_and_the_first_quorum_is_no_news() -> None:
    story = Story("0")
    assert tell(story, quorum(0, "0", "1")) == []
    assert tell(story, quorum(1, "0", "1", "2", step=4)) == ["group 2 joined at step 4"]


def test_reasons_are_told_once_and_short() -> None:
    story = Story("0")
    tell(story, quorum(0, "0", "1"))
    drop = {"event": "drop", "mono": 0.5, "reason": "a bucket failed."}
    assert tell(story, drop) == ["step 1 dropped (a bucket failed); it is run again"]
    sentence = "1:x is lost: its address http://host:1 refuses connections."
    assert tell(story, lost(1, "1", reason=sentence), drop) == [
        "group 1 died (its address http://host:1 refuses connections) at step 0",
        "step 1 dropped; it is run again",
    ]


def test_a_step_that_is_dropped_over_and_over_is_told_once_and_counted_slowly() -> None:
    """A group that waits for others with fewer than the script wants tries four times in a second, for hours."""
    story = Story("0")
    few, broken = "1 participants, but min_replica_size is 2", "a bucket failed"
    tell(story, quorum(0, "0", "1"), commit(1.0, 1), lost(1.1, "1"))
    drops = [{"event": "drop", "mono": 2.0 + 0.25 * i, "reason": few} for i in range(500)]  # to 126.75
    assert tell(story, *drops) == [
        "step 2 dropped; it is run again",
        f"step 2 was dropped 240 times more in 60 s ({few})",
        f"step 2 was dropped 240 times more in 60 s ({few})",
    ]
    assert tell(story, {"event": "drop", "mono": 127.0, "reason": broken}) == [
        f"step 2 dropped ({broken}); it is run again"
    ]
    assert tell(story, {"event": "drop", "mono": 127.25, "reason": few}) == [f"step 2 dropped ({few}); it is run again"]
    assert story.dropped == 502
    tell(story, commit(128.0, 2))
    assert tell(story, {"event": "drop", "mono": 128.1, "reason": few}) == [f"step 3 dropped ({few}); it is run again"]


def test_a_failed_reduction_is_told_where_no_loss_explains_it() -> None:
    story = Story("0")
    tell(story, quorum(0, "0", "1"), commit(1.0, 1))
    redo = {"event": "redo", "mono": 1.1, "step": 1}
    assert tell(story, redo) == ["step 2 is reduced again: a reduction failed, and nobody was lost"]
    assert tell(story, commit(1.2, 2)) == ["training goes on at step 2 with 2 groups: 0.20 s lost"]
    assert tell(story, lost(1.3, "1"), redo)[1:] == []


def test_groups_are_ordered_as_numbers() -> None:
    assert by_number({"10", "9", "train_2", "east"}) == ["train_2", "9", "10", "east"]


def test_who_has_left_in_good_order_has_spoken_of_the_last_commit() -> None:
    """Both groups told of the last exchange, and said "done", when one was slow enough to hear that the other had left."""
    story = Story("1")
    tell(story, quorum(0, "0", "1"), commit(1.0, 1))
    assert not story.speaks
    tell(story, {**lost(1.1, "0"), "left": True})
    assert not story.speaks
    tell(story, commit(1.2, 2))  # without it
    assert story.speaks
    tell(story, quorum(2, "0", "1"), commit(1.3, 3), lost(1.4, "0"))
    assert story.speaks  # it died, and may not have spoken


def test_who_has_left_before_its_last_commit_is_told_here_has_spoken_of_it() -> None:
    story = Story("1")
    tell(story, quorum(0, "0", "1"), commit(1.0, 1))
    tell(story, {**lost(1.1, "0"), "left": True}, {**commit(1.2, 2), "participants": 2})
    assert not story.speaks
    tell(story, quorum(1.3, "1"), {**commit(1.4, 3), "participants": 1})
    assert story.speaks
