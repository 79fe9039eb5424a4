"""What a person reads: changes and lasting reasons, not steps."""

from __future__ import annotations

import logging

import pytest

from torchft_x.core.messages import Note
from torchft_x.core.types import Member, Quorum, State
from torchft_x.rpc.lighthouse.log import log_note, log_quorum

log = logging.getLogger("torchft_x.test_lighthouse_log")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, log.name)
    return caplog


def test_only_quorums_that_change_something_are_said(lines: pytest.LogCaptureFixture) -> None:
    """In torchft's words: `Detected quorum change, bumping quorum_id to N`, `Quorum!`, `world_size`, `commit_failures`. The
    secret of a store is not for the log."""
    members = (
        Member(
            "a:1",
            "http://worker-1:41093",
            "keyed://0443b49@worker-1:33745",
            State(21, 10),
            world_size=8,
            commit_failures=1,
        ),
        Member("b:1", "http://worker-0:40525", "worker-0:44595", world_size=8),
    )
    for quorum_id, config_id in ((11, 11), (12, 11), (13, 13), (14, 13)):
        log_quorum(log, Quorum(quorum_id, config_id, quorum_id - 10, members))
    said = (
        "a:1 (step 21, world_size 8, commit_failures 1, address http://worker-1:41093, store_address worker-1:33745), "
        "b:1 (step 0, world_size 8, commit_failures 0, address http://worker-0:40525, store_address worker-0:44595)"
    )
    assert lines.messages == [
        "Detected quorum change, bumping quorum_id to 11",
        f"Quorum! q1 (id 11) at step 21 (quorum 10): 2 members, {said}",
        "Detected quorum change, bumping quorum_id to 13",
        f"Quorum! q3 (id 13) at step 21 (quorum 10): 2 members, {said}",
    ]


def test_notes_have_levels(lines: pytest.LogCaptureFixture) -> None:
    for event in ("member_lost", "leave", "hello", "undecided"):
        log_note(log, Note(event, event))
    log_note(log, Note("member_lost", "a:1 has left.", cause="left"))
    said = [(r.levelname, r.message) for r in lines.records]
    assert said == [("WARNING", "member_lost"), ("INFO", "leave"), ("INFO", "undecided"), ("INFO", "a:1 has left.")]
