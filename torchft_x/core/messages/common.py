"""Events that go into every machine, and effects that may come out of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: check what is due."""


@dataclass(frozen=True, slots=True)
class Note:
    """Write this to the log and event file. `event`: one of design 7's names or a log-only name. `text`: a sentence."""

    event: str
    text: str
    replica_id: str = ""
    quorum_id: int = 0
    steps: int | None = None  # number of steps that are lost
    cause: str = ""  # cause of a loss, one of `core.lighthouse.waiting.CAUSES`
