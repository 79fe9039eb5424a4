"""What a machine remembers of its decisions."""

from __future__ import annotations

from tests.unit.core.scene import member
from torchft_x.core.decision_log import KEPT, DecisionLog
from torchft_x.core.messages import Tick
from torchft_x.core.messages.group import Ask
from torchft_x.core.messages.job import SupervisorHere
from torchft_x.core.messages.lighthouse import Fence, Heartbeat, UnaryJoin
from torchft_x.core.types import State


def test_the_newest_are_kept_in_their_order() -> None:
    log = DecisionLog()
    log.event = Tick()
    for n in range(3 * KEPT):
        log.note(str(n))
    assert log.story(0.0) == [f"0.0 s ago, Tick: {n}" for n in range(2 * KEPT, 3 * KEPT)]


def test_a_line_says_when_why_and_what() -> None:
    log = DecisionLog()
    log.now, log.event = 2.0, Ask(1, 3, State())
    log.note("It asks.")
    assert log.story(4.5) == ["2.5 s ago, Ask of rank 3: It asks."]


def test_a_cause_names_whom_the_event_is_about() -> None:
    events = [Heartbeat("p:1"), UnaryJoin(1, member("p:2")), SupervisorHere("g", "host"), Fence("g:2")]
    log = DecisionLog()
    for log.event in events:
        log.note("")
    causes = ["Heartbeat of p:1", "UnaryJoin of p:2", "SupervisorHere of g", "Fence"]
    assert log.story(0.0) == [f"0.0 s ago, {cause}: " for cause in causes]
