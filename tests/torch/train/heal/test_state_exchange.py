"""A source gives up who copies from it when nothing moves while it waits."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.train.context.test_failures import plan
from tests.util import wait_for
from torchft_x.core.training.step_clock import WaitBudget
from torchft_x.train.heal.state_exchange import look_after


class Source:
    """What `look_after` needs of a Manager's context; it waits from the beginning, for 0.2 s if nothing moves."""

    def __init__(self, progress: Any) -> None:
        self.failed: list[tuple[str, int]] = []
        self.options = SimpleNamespace(timeout=60.0, group_world_size=1)
        self.waits = WaitBudget(time.monotonic(), most=60.0, fixed=0.2)
        self.step = SimpleNamespace(quorum_id=7)
        self.transport = SimpleNamespace(progress=progress)
        self.failures = SimpleNamespace(
            fail=lambda error, quorum_id: self.failed.append((str(error), quorum_id)), given_up=Counter()
        )
        self.waits.start_wait(time.monotonic())


def offered() -> Any:
    return replace(plan(), dst_ranks=(1,), max_world_size=1)


@pytest.mark.parametrize(("done", "words"), [(False, "nothing has moved"), (True, "does not come")])
def test_who_stands_still_is_given_up(done: bool, words: str) -> None:
    source: Any = Source(lambda: (0, done))
    look_after(source, offered())
    wait_for(lambda: source.failed, 10, "its step to fail")
    sentence, quorum_id = source.failed[0]
    assert sentence.startswith("b:1 ")
    assert words in sentence
    assert quorum_id == 7
    assert source.failures.given_up == ({"b": 1} if done else {})


def test_who_moves_is_waited_for_until_the_quorum_ends() -> None:
    looks: list[float] = []

    def progress() -> tuple[int, bool]:
        looks.append(time.monotonic())
        return len(looks), False

    source: Any = Source(progress)
    look_after(source, offered())
    wait_for(lambda: len(looks) > 20, 30, "some looks")
    source.step.quorum_id = 8
    ended = len(looks)
    assert source.failed == []
    assert len(looks) <= ended + 2


def test_where_nothing_can_be_said_nobody_looks() -> None:
    source: Any = Source(lambda: None)
    look_after(source, offered())
    assert source.failed == []
