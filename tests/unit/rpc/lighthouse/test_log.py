"""What a person reads: changes and lasting reasons, not steps."""

from __future__ import annotations

import logging

import pytest

from torchft_x.core.messages.common import Note
from torchft_x.core.types import Member, Quorum
from torchft_x.rpc.lighthouse.log import NoteLog

log = logging.getLogger("torchft_x.test_lighthouse_log")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, log.name)
    return caplog


def test_only_quorums_that_change_something_are_said(lines: pytest.LogCaptureFixture) -> None:
    notes, members = NoteLog(log), (Member("a:1"), Member("b:1"))
    for quorum_id, config_id in ((11, 11), (12, 11), (13, 13), (14, 13)):
        notes.issued(Quorum(quorum_id, config_id, quorum_id - 10, members))
    assert lines.messages == [
        "Quorum! q1 (id 11) at step 0 (quorum 0): 2 members, a:1, b:1",
        "Quorum! q3 (id 13) at step 0 (quorum 0): 2 members, a:1, b:1",
    ]


def test_notes_have_levels(lines: pytest.LogCaptureFixture) -> None:
    notes = NoteLog(log)
    for event in ("member_lost", "leave", "hello", "undecided"):
        notes.note(Note(event, event))
    notes.note(Note("member_lost", "a:1 has left.", cause="left"))
    said = [(r.levelname, r.message) for r in lines.records]
    assert said == [("WARNING", "member_lost"), ("INFO", "leave"), ("INFO", "undecided"), ("INFO", "a:1 has left.")]
