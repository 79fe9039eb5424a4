"""What a rank says about itself, from what it hears."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.process.train.watched_worker import options
from torchft_x.core.commit.step import Step
from torchft_x.core.types import State
from torchft_x.train.introspection.shared_status import SharedStatus


def make(story: Callable[[], list[str]] = list) -> SharedStatus:
    step = Step(min_replica_size=1)
    step.state = State(4, 7)
    return SharedStatus(options(0), step, "1:a", story)


def event(name: str, **fields: Any) -> dict[str, Any]:
    return {"replica_id": "1:a", "rank": 0, "event": name, "t": 50.0, **fields}


def test_it_says_whom_it_lost_and_with_whom_it_is() -> None:
    status = make()
    for n in range(10):
        status.hear(event("member_lost", lost=f"2:{n}", reason="r" * 1000, left=n == 9 or None))
    status.hear(event("quorum", number=3, members=["1:a", "2:b"]))
    status.hear(event("configure", config=9, duration=0.5))
    said = status.read()
    assert [lost["replica_id"] for lost in said["lost"]] == [f"2:{n}" for n in range(2, 10)]
    assert len(said["lost"][0]["reason"]) == 200
    assert [lost["left"] for lost in said["lost"]] == [False] * 7 + [True]
    assert (said["number"], said["members"], said["config"], said["configured"]) == (3, ["1:a", "2:b"], 9, 49.5)
    assert (said["step"], said["phase"], said["leaving"]) == (4, "idle", False)


def test_it_says_what_its_group_has_decided_lately() -> None:
    decided = [f"decision {n}" for n in range(20)]
    said = make(lambda: decided).read()
    assert said["story"] == decided[-8:]
    assert said["story_t"] == pytest.approx(said["t"], abs=60)


def test_others_events_are_not_its_own() -> None:
    status = make()
    status.hear(event("commit", duration=2.0) | {"rank": 1})
    status.hear(event("leave") | {"replica_id": "1:before"})
    assert (status.read()["commits"], status.read()["leaving"]) == (0, False)
    status.hear(event("leave"))
    assert status.read()["leaving"]
