"""What a person reads on the lighthouse's stderr: what changed and why nothing happens, never one line per step."""

from __future__ import annotations

import logging

from torchft_x.core.messages.common import Note
from torchft_x.core.types import Quorum, listed

_LEVELS = {
    "error": logging.WARNING,
    "member_lost": logging.WARNING,
    "new_lineage": logging.WARNING,
    "suspect": logging.WARNING,
    "hello": logging.DEBUG,  # the joins that follow are said
}


class NoteLog:
    """Writes the machine's notes to one logger, each at the level a reader wants it at."""

    def __init__(self, logger: logging.Logger) -> None:
        self._log = logger

    def note(self, note: Note) -> None:
        level = logging.INFO if note.cause == "left" else _LEVELS.get(note.event, logging.INFO)
        self._log.log(level, "%s", note.text)

    def issued(self, quorum: Quorum) -> None:
        """Log a quorum with other members than the last one, or after a failed commit, with torchft's words, which people search
        for. One more step of the same members is not worth a line."""
        if quorum.config_id == quorum.id:
            self._log.info("Detected quorum change, bumping quorum_id to %d", quorum.id)
            members = [
                f"{m.replica_id} (step {m.state.step}, world_size {m.world_size}, commit_failures {m.commit_failures}, "
                f"address {m.address}, store_address {m.store_address.rpartition('@')[2]})"  # before the @ is its secret
                for m in quorum.members
            ]
            self._log.info(
                "Quorum! q%d (id %d) at %s: %d members, %s",
                quorum.number,
                quorum.id,
                quorum.top,
                len(members),
                listed(members),
            )
