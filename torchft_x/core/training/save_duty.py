"""Which group saves a durable checkpoint, when, and whether it may write where it was told to.

All groups hold the same state, so one is enough: of those that take part, the first (the one with the smallest id). All
ranks of a group and all groups work this out from the quorum in which the step was committed, and tell each other
nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torchft_x.timing import TIMING

SAY_AGAIN = 60.0
"""Seconds between two lines about saves that fail."""


class SaveDuty:
    """Of one rank. `every`: steps between two saves."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._entrusted = False  # another group was first when the last save was due, and has it in hand
        self.first = False  # this group was first in the last committed step

    def __repr__(self) -> str:
        return f"<SaveDuty every {self._every} steps, first {self.first}>"

    def committed(self, step: int, place: int | None) -> bool:
        """`step` is committed: does this group save it? `place`: among those that took part, None for none.

        A group that becomes the first takes over: the one before it may have died in the middle of its save, so the
        present step is saved at once.
        """
        due = step % self._every == 0
        self.first = place == 0
        if not self.first:
            self._entrusted = self._entrusted or due
            return False
        takes_over, self._entrusted = self._entrusted, False
        return due or takes_over


class Entry(NamedTuple):
    """What a job writes at its URL."""

    job: str
    beat: int  # counts up while it runs
    over: bool  # it has ended, and said so


class Claim:
    """Whether this job may write at its URL. Another one that runs there is known by a beat that goes on: no clock but
    this process's own is asked, so those of the hosts and of the storage may differ.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._foreign: Entry | None = None  # of another job, as it was seen first
        self._since = 0.0  # monotonic; when that was
        self.ours = False  # we may write

    def seen(self, entry: Entry | None, now: float) -> str:
        """`entry`: what is there now, None for nothing. Why this job must not write there at all, or ''; `ours` says
        whether it may already."""
        if entry is None or entry.job == self._job or entry.over:
            self._foreign, self.ours = None, True
            return ""
        if self.ours:
            return "another job has begun to write there"
        if self._foreign is None:
            self._foreign, self._since = entry, now
        elif entry != self._foreign:
            return "another job that runs now writes there"
        elif now - self._since >= TIMING.claim_watch:
            self._foreign, self.ours = None, True
        return ""


class SaveFailures:
    """A save that fails costs no training, and is told now and then."""

    def __init__(self) -> None:
        self._count = 0  # since the last save that worked
        self._said = -math.inf  # when it was told

    def failed(self, what: str, now: float) -> str:
        """The line to write, or '' if there was one just before. `what`: a sentence."""
        self._count += 1
        if now - self._said < SAY_AGAIN:
            return ""
        self._said = now
        again = "" if self._count == 1 else f" ({self._count} in a row)"
        return f"a checkpoint was not saved{again}; training goes on: {what}"

    def worked(self) -> None:
        self._count = 0
