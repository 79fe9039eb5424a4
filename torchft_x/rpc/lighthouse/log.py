"""The lighthouse's log for people: changes, and reasons why it waits; never one line per step."""

from __future__ import annotations

import logging

from torchft_x.core.messages import Note
from torchft_x.core.types import Quorum, listed

_LEVELS = {
    "error": logging.WARNING,
    "member_lost": logging.WARNING,
    "new_lineage": logging.WARNING,
    "suspect": logging.WARNING,
    "hello": logging.DEBUG,  # the join that follows is logged
}


def log_note(log: logging.Logger, note: Note) -> None:
    level = logging.INFO if note.cause == "left" else _LEVELS.get(note.event, logging.INFO)
    log.log(level, "%s", note.text)


def log_quorum(log: logging.Logger, quorum: Quorum) -> None:
    """Log a quorum that has other members than the last one, or follows a failed commit, in torchft's words.

    People search for these words. A further quorum of the same members gets no line."""
    if quorum.config_id != quorum.id:
        return
    members = [
        f"{m.replica_id} (step {m.state.step}, world_size {m.world_size}, commit_failures {m.commit_failures}, "
        f"address {m.address}, store_address {m.store_address.rpartition('@')[2]})"  # the secret is before the @
        for m in quorum.members
    ]
    log.info("Detected quorum change, bumping quorum_id to %d", quorum.id)
    text = "Quorum! q%d (id %d) at %s: %d members, %s"
    log.info(text, quorum.number, quorum.id, quorum.top, len(members), listed(members))
