"""What goes into every machine, and what may come out of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Note:
    """For the log and the event file: `event` is one of design 7's names or a log-only name, `text` is a sentence."""

    event: str
    text: str
    replica_id: str = ""
    quorum_id: int = 0
    steps: int | None = None  # that are lost
    cause: str = ""  # of a loss, one of `core.lighthouse.loss.CAUSES`
