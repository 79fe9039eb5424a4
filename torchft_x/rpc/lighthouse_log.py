"""What a person reads on the lighthouse's stderr: what changed and why nothing happens, never one line per step."""

from __future__ import annotations

import logging

from torchft_x.core.messages import Note

_LEVELS = {
    "error": logging.WARNING,
    "member_lost": logging.WARNING,
    "new_lineage": logging.WARNING,
    "suspect": logging.WARNING,
    "quorum_change": logging.DEBUG,  # the quorum that follows is said
    "hello": logging.DEBUG,  # the joins that follow are said
}


class NoteLog:
    """Writes the machine's notes to one logger, each at the level a reader wants it at."""

    def __init__(self, logger: logging.Logger) -> None:
        self._log = logger
        self._changed_in = 0  # id of the last quorum whose members differ from the one before, or a step failed

    def note(self, note: Note) -> None:
        level = _LEVELS.get(note.event, logging.INFO)
        if note.event == "quorum_change":
            self._changed_in = note.quorum_id
        elif note.event == "quorum" and note.quorum_id != self._changed_in:
            level = logging.DEBUG  # one more step of the same members
        self._log.log(level, "%s", note.text)

    def changed_in(self, quorum_id: int) -> bool:
        """Whether this quorum was announced as a change."""
        return quorum_id == self._changed_in
