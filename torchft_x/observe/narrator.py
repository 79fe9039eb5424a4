"""What a person reads while a script of their own trains: who was lost, what it cost, who is back. One line each."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from torchft_x.core.types import group_of
from torchft_x.observe.console import Story
from torchft_x.observe.events import subscribe


class Narrator:
    """Prints a `Story` of one Manager's events to stderr, in one group for all: the lowest that takes part.

    Events come on any thread; between two losses it prints nothing. The details are in the event log.
    """

    def __init__(self, replica_id: str, rank: int, say: Callable[[str], object] | None = None) -> None:
        self.story = Story(group_of(replica_id))
        self._replica_id = replica_id  # fixed, as the next two
        self._rank = rank
        self._say = say or _print
        self._lock = threading.Lock()  # guards the story, and keeps its lines in order
        self.close = subscribe(self._hear)

    def _hear(self, event: dict[str, Any]) -> None:
        if event.get("replica_id") != self._replica_id or event.get("rank") != self._rank:
            return
        with self._lock:
            if event["event"] == "commit" and not self.story.interrupted:
                self.story.tell(event)  # once a step: it has no lines
                return
            spoke = self.story.speaks  # who hands over to a group that is back still tells that it is
            for line in self.story.tell(event):
                if spoke or self.story.speaks:
                    self._say(line)


def _print(line: str) -> None:
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):  # nobody reads any more; the training has nothing to do with it
        pass
