"""What a person reads: changes and lasting reasons, not steps."""

from __future__ import annotations

import logging

import pytest

from torchft_x.core.messages import Note
from torchft_x.rpc.lighthouse_log import NoteLog

log = logging.getLogger("torchft_x.test_lighthouse_log")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, log.name)
    return caplog


def test_only_quorums_that_change_something_are_said(lines: pytest.LogCaptureFixture) -> None:
    notes = NoteLog(log)
    for quorum_id in (1, 2, 3, 4):
        if quorum_id in (1, 3):
            notes.note(Note("quorum_change", f"Detected quorum change {quorum_id}", quorum_id=quorum_id))
        notes.note(Note("quorum", f"Quorum! {quorum_id}", quorum_id=quorum_id))
        assert notes.changed_in(quorum_id) == (quorum_id in (1, 3))
    assert lines.messages == [
        "Quorum! 1",
        "Quorum! 3",
    ]


def test_notes_have_levels(lines: pytest.LogCaptureFixture) -> None:
    notes = NoteLog(log)
    for event in ("member_lost", "leave", "hello", "undecided"):
        notes.note(Note(event, event))
    said = [(r.levelname, r.message) for r in lines.records]
    assert said == [("WARNING", "member_lost"), ("INFO", "leave"), ("INFO", "undecided")]
