"""Decide which group saves a durable checkpoint, when, and whether the job may write at its URL.

All groups hold the same state, so one of them saves: the first of the participants (the one with the smallest id). All
ranks of all groups derive this from the quorum in which the step was committed, without a message to each other.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torchft_x.timing import LOG_AGAIN, TIMING


class SaveDuty:
    """One rank's decision at which steps its group saves. `every`: steps between two saves."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._entrusted = False  # whether another group was first when the last save was due, and is to make it
        self.first = False  # whether this group was first in the last committed step

    def __repr__(self) -> str:
        return f"<SaveDuty every {self._every} steps, first {self.first}>"

    def committed(self, step: int, index: int | None) -> bool:
        """Return whether this group saves `step`, just committed. `index`: that among the participants; None: none.

        A group that becomes the first takes over and saves the present step at once: the group before it may have died
        in the middle of its save.
        """
        due = step % self._every == 0
        self.first = index == 0
        if not self.first:
            self._entrusted = self._entrusted or due
            return False
        takes_over, self._entrusted = self._entrusted, False
        return due or takes_over


class Entry(NamedTuple):
    """Record that a job writes at its URL."""

    job: str
    beat: int  # counts up while the job runs
    over: bool  # whether the job has ended and recorded that


class Claim:
    """This job's claim to write at its URL.

    A beat that advances shows that another job runs there. Only this process's own clock is read, so the clocks of
    hosts and storage may differ.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._foreign: Entry | None = None  # entry of another job, as first seen
        self._since = 0.0  # when `_foreign` was first seen, monotonic seconds
        self.ours = False  # whether this job may write

    def seen(self, entry: Entry | None, now: float) -> str:
        """Take the entry that is at the URL now (None: none). Return why this job must never write there, or ''.

        `ours` then says whether this job may write already."""
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
    """Count of failed saves, which cost no training. Limits how often they are logged."""

    def __init__(self) -> None:
        self._count = 0  # failed saves since the last good one
        self._reported_at = -math.inf  # when a failure was last logged, monotonic seconds

    def failed(self, what: str, now: float) -> str:
        """Record a failed save. Return the line to log, or '' if one was logged just before. `what`: a sentence."""
        self._count += 1
        if now - self._reported_at < LOG_AGAIN:
            return ""
        self._reported_at = now
        again = "" if self._count == 1 else f" ({self._count} in a row)"
        return f"a checkpoint was not saved{again}; training goes on: {what}"

    def worked(self) -> None:
        self._count = 0
