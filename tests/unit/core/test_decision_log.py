"""What a machine remembers of its decisions."""

from __future__ import annotations

from tests.unit.core.scene import member
from torchft_x.core.decision_log import KEPT, Decision, after, story
from torchft_x.core.messages import Tick
from torchft_x.core.messages.group import Ask
from torchft_x.core.messages.job import SupervisorHere
from torchft_x.core.messages.lighthouse import Fence, Heartbeat, UnaryJoin
from torchft_x.core.types import State


def test_the_newest_are_kept_in_their_order() -> None:
    kept: tuple[Decision, ...] = ()
    for n in range(3 * KEPT):
        kept = after(kept, float(n), Tick(), str(n))
    assert [d.sentence for d in kept] == [str(n) for n in range(2 * KEPT, 3 * KEPT)]


def test_a_line_says_when_why_and_what() -> None:
    assert story(after((), 2.0, Ask(1, 3, State()), "It asks."), 4.5) == ["2.5 s ago, Ask of rank 3: It asks."]


def test_a_cause_names_whom_the_event_is_about() -> None:
    events = [Heartbeat("p:1"), UnaryJoin(1, member("p:2")), SupervisorHere("g", "host"), Fence("g:2")]
    kept: tuple[Decision, ...] = ()
    for event in events:
        kept = after(kept, 0.0, event, "")
    assert [d.cause for d in kept] == ["Heartbeat of p:1", "UnaryJoin of p:2", "SupervisorHere of g", "Fence"]
