"""What a group does now, from what is known of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchft_x.core.lighthouse.status import MemberView
from torchft_x.observe.view.activity import DOES, GroupFacts, activity
from torchft_x.observe.view.attempts import GroupAttempts
from torchft_x.observe.view.history import LossEntry

MEMBER = MemberView(
    replica_id="1:x", index=1, attempt=0, inside=True, carrier=True, source="", asked=None, step=7, lost="", left=False,
    late=False, suspected=False, stopped="", connected=True, unary=False, rehearses=False, pause=0.0, pause_reason="",
    heard=0.5,
)  # fmt: skip
RUNS = GroupAttempts("1", streams={1: 0}, attempt_token="x", starts=1, alive=True)
LOSS = LossEntry(t=1.0, group="1", replica_id="1:x", cause="silent", reason="1:x is lost.", step=3, quorum=1)


def does(
    member: MemberView | None = MEMBER,
    attempts: GroupAttempts | None = None,
    loss: LossEntry | None = None,
    trouble: str = "",
    drains: bool = False,
    **world: str,
) -> tuple[str, str]:
    seen = GroupFacts("1", member, attempts, loss, trouble, drains)
    return activity(seen, **{"broken": "", "undecided": "", **world})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("trains", "")),
        ({"carrier": False, "source": "0:5f0c0000-0000-0000-0000-000000000000"}, ("heals", "copies from group 0")),
        ({"asked": 2.0}, ("waits", "for the next quorum")),
        ({"pause": 30.0, "pause_reason": "evaluation"}, ("pauses", "evaluation: for up to 30 s")),
        ({"suspected": True, "heard": 4.25}, ("silent", "not heard for 4.2 s")),
        ({"stopped": "worker 1"}, ("stopped", "worker 1 is stopped (SIGSTOP or a debugger)")),
        ({"stopped": "worker 1", "lost": "stopped"}, ("stopped", "worker 1 is stopped (SIGSTOP or a debugger)")),
        ({"lost": "it does not come", "late": True}, ("late", "it does not come")),
        ({"lost": "silent for 5 s"}, ("lost", "silent for 5 s")),
        ({"lost": "it has left", "left": True}, ("left", "")),
        ({"inside": False, "carrier": False}, ("starts", "")),
        ({"inside": False, "carrier": False, "rehearses": True}, ("rehearses", "makes its first step before it joins")),
        ({"inside": False, "connected": False}, ("silent", "its connection broke 0.5 s ago")),
    ],
)
def test_a_member(fields: dict[str, object], expected: tuple[str, str]) -> None:
    assert does(replace(MEMBER, **fields)) == expected  # type: ignore[arg-type]


def test_its_supervisor_knows_better() -> None:
    ended = replace(RUNS, alive=False, reason="worker 0 killed by SIGKILL")
    assert does(attempts=RUNS) == ("trains", "")
    assert does(attempts=ended) == ("restarts", "worker 0 killed by SIGKILL")
    assert does(attempts=replace(ended, finished=(0, ""))) == ("finished", "")
    assert does(attempts=replace(ended, finished=(1, "gave up."))) == ("failed", "gave up")
    assert does(attempts=replace(ended, rests=True))[0] == "drained"
    assert does(attempts=RUNS, drains=True)[0] == "drains"
    assert does(attempts=ended, drains=True)[0] == "restarts"
    assert does(attempts=RUNS, trouble="its supervisor is gone") == ("lost", "its supervisor is gone")


def test_a_new_attempt_that_has_not_said_hello() -> None:
    assert does(replace(MEMBER, lost="its process ended"), replace(RUNS, attempt=1)) == ("starts", "")
    assert does(None, RUNS) == ("starts", "")


def test_nobody_is_here() -> None:
    assert does(None) == ("awaited", "")
    assert does(None, loss=LOSS) == ("lost", "1:x is lost")
    assert does(None, loss=replace(LOSS, cause="left")) == ("left", "")
    assert does(None, loss=replace(LOSS, exit="killed by SIGKILL")) == ("lost", "killed by SIGKILL")


def test_the_world_says_what_it_waits_for_and_that_its_quorum_is_over() -> None:
    assert does(replace(MEMBER, asked=2.0), undecided="Waiting for 2 groups.") == ("waits", "Waiting for 2 groups")
    assert does(broken="group 0 is lost.") == ("regroups", "group 0 is lost")
    assert {does(attempts=RUNS)[0], does(None)[0]} <= set(DOES)
    assert len(set(DOES)) == len(DOES)
