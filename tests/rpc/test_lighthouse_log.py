"""What a person reads: changes and lasting reasons, not steps."""

from __future__ import annotations

import logging

import pytest

from torchft_x.core.messages import Note
from torchft_x.core.types import Member, Quorum
from torchft_x.rpc.lighthouse_log import QuorumLog

log = logging.getLogger("torchft_x.test_lighthouse_log")


def quorum(number: int, config_id: int, count: int = 2) -> Quorum:
    return Quorum(1000 + number, config_id, number, tuple(Member(f"g{i}:x") for i in range(count)))


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, log.name)
    return caplog


def test_only_changes_are_said(lines: pytest.LogCaptureFixture) -> None:
    q = QuorumLog(log)
    assert [q.issued(quorum(n, c)) for n, c in [(1, 7), (2, 7), (3, 7), (4, 9), (5, 9)]] == [True, False, False, True, False]
    said = lines.messages
    assert said == [
        "Quorum! q1 (id 1001), 2 members at step 0: g0:x, g1:x",
        "Detected quorum change, bumping quorum_id to 7",
        "Quorum! q4 (id 1004), 2 members at step 0: g0:x, g1:x",
        "Detected quorum change, bumping quorum_id to 9",
    ]


def test_a_large_quorum_is_one_readable_line(lines: pytest.LogCaptureFixture) -> None:
    QuorumLog(log).issued(quorum(1, 1, count=500))
    assert lines.messages[0].endswith("g7:x and 492 more")


def test_a_reason_is_said_once_it_has_lasted(lines: pytest.LogCaptureFixture) -> None:
    q = QuorumLog(log)
    for t in range(30):  # three seconds, the age in it changes all the time
        q.reason(f"waiting {t / 10:.1f} s for 2 groups", t / 10)
    assert lines.messages == ["waiting 1.0 s for 2 groups"]
    q.reason("", 3.0)
    q.reason("something else", 3.1)
    q.reason("", 3.2)  # lasted too short
    assert len(lines.messages) == 1
    q.issued(quorum(1, 1))
    for t in range(40, 60):
        q.reason("waiting 1.0 s for 2 groups", t / 10)
    assert lines.messages[-1] == "waiting 1.0 s for 2 groups"  # again, after a quorum in between


def test_notes_have_levels(lines: pytest.LogCaptureFixture) -> None:
    q = QuorumLog(log)
    q.note(Note("member_lost", "a:1 is lost."))
    q.note(Note("leave", "b:1 leaves."))
    q.note(Note("waiting", "each step."))
    assert [(r.levelname, r.message) for r in lines.records] == [("WARNING", "a:1 is lost."), ("INFO", "b:1 leaves.")]
