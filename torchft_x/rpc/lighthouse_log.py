"""What a person reads on the lighthouse's stderr: what changed and why nothing happens, never one line per step."""

from __future__ import annotations

import logging
import re

from torchft_x.core.messages import Note
from torchft_x.core.types import Quorum

REASON_AFTER = 1.0
"""Seconds a reason must last before it is said; between two ranks' joins there is always a short one."""

_LEVELS = {"error": logging.WARNING, "member_lost": logging.WARNING, "quorum": logging.DEBUG, "waiting": logging.DEBUG}


class QuorumLog:
    """Writes to one logger. Remembers what it said last."""

    def __init__(self, logger: logging.Logger) -> None:
        self._log = logger
        self._config_id: int | None = None  # of the last quorum; None: none yet
        self._reason = ""  # why no quorum forms, without its numbers
        self._since = 0.0  # how long that has been the reason (monotonic)
        self._said = ""  # the last reason written, without its numbers

    def issued(self, quorum: Quorum) -> bool:
        """Log one quorum; True if its members changed or a step had failed since the last."""
        changed = quorum.config_id != self._config_id
        self._config_id = quorum.config_id
        self._said = ""
        self._log.log(
            logging.INFO if changed else logging.DEBUG,
            "Quorum! q%d (id %d), %d members at step %d: %s",
            quorum.number,
            quorum.id,
            len(quorum.members),
            quorum.top.step,
            _names([x.replica_id for x in quorum.members]),
        )
        if changed:
            self._log.info("Detected quorum change, bumping quorum_id to %d", quorum.config_id)
        return changed

    def reason(self, text: str, now: float) -> None:
        """Tell at each tick why no quorum forms (empty: none is wanted); written once it has lasted."""
        kind = re.sub(r"[\d.]+", "#", text)  # ages and counts change all the time
        if kind != self._reason:
            self._reason, self._since = kind, now
        elif kind and kind != self._said and now - self._since >= REASON_AFTER:
            self._said = kind
            self._log.info("%s", text)

    def note(self, note: Note) -> None:
        self._log.log(_LEVELS.get(note.event, logging.INFO), "%s", note.text)


def _names(ids: list[str], most: int = 8) -> str:
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return ", ".join(ids[:most]) + more
