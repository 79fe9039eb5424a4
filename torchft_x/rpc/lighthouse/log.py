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
        """One more step of the same members, of which no member failed, is not worth a line."""
        if quorum.config_id == quorum.id:
            names = listed([m.replica_id for m in quorum.members])
            self._log.info(
                "Quorum! q%d (id %d) at %s: %d members, %s",
                quorum.number,
                quorum.id,
                quorum.top,
                len(quorum.members),
                names,
            )
