"""The position of a training in logical streams, one for each slot of a step."""

from __future__ import annotations

import json
from dataclasses import dataclass

from torchft_x.core.data.options import DataOptions
from torchft_x.core.data.ranges import members
from torchft_x.core.types import Ranges
from torchft_x.errors import ConfigError

_KIND = "streams"


@dataclass(frozen=True, slots=True)
class StreamState:
    """Number of items of each stream that are committed. A slot takes one item of its stream in each step.

    A stream whose slot was left out of a commit stays where it is, so nothing is owed.
    """

    counts: tuple[int, ...]
    lanes: int = 0  # as in `DataState`; streams are not for groups that train apart

    def committed(self, options: DataOptions) -> int:
        """Return the number of items committed so far, of all streams together."""
        return sum(self.counts)

    @property
    def owed(self) -> int:
        return 0

    def present(self, slots: Ranges, options: DataOptions) -> Ranges:
        """Return those of the next step's `slots` that hold data: all."""
        return slots

    def commit(self, slots: Ranges, options: DataOptions) -> StreamState:
        """Return the state after a commit of these slots of the next step."""
        counts = list(self.counts)
        for slot in members(slots):
            counts[slot] += 1
        return StreamState(tuple(counts))

    def check_same(self, mine: StreamState) -> None:
        """Raise `ConfigError` unless this saved position is one in as many streams as `mine`."""
        if len(self.counts) != len(mine.counts):
            raise ConfigError(
                f"the saved position is one in {len(self.counts)} streams, and this run has {len(mine.counts)}; their number "
                "can't change."
            )

    def to_json(self) -> str:
        return json.dumps([_KIND, self.counts])

    @staticmethod
    def from_json(text: str) -> StreamState | None:
        """Read the result of `to_json`; None if it is not one."""
        try:
            kind, counts = json.loads(text)
            fine = kind == _KIND and counts and all(type(n) is int and n >= 0 for n in counts)
        except (ValueError, TypeError):
            return None
        return StreamState(tuple(counts)) if fine else None
