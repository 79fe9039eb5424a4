"""Decides which of several lighthouses serves: the holder of the lease, an entry in a register that all of them reach.

The register is changed by compare-and-swap only (`Register.swap`): of all contenders that saw the same entry, one
replaces it. The holder advances the entry's `count` at intervals, and after each write to the journal, before anything
that was written leaves the process. A standby takes the lease over when the entry has stood unchanged for longer than
the holder may serve without advancing it. It counts that time on its own clock, so that no two clocks are compared.
That is a guess, but a wrong one does no harm: the swap succeeds only if the entry still is the one that was watched.
From then on the former holder's next swap fails. The argument is in
docs/dev/decisions/0045-lighthouse-lease.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from torchft_x.timing import TIMING


@dataclass(frozen=True, slots=True)
class LeaseEntry:
    """The value that the register holds."""

    epoch: int
    """Number of times that the lease was taken; 0: nobody has held it yet."""
    count: int = 0
    """Number of renewals in this epoch."""
    owner: str = ""
    """Random name of the epoch's holder; empty: the holder has given the lease back, so that nobody need wait."""
    verdict: int | None = None
    """Exit code of the job if it is over, so that nobody takes the lease any more; None: it is not over."""


class Register(Protocol):
    """One `LeaseEntry` that survives any host. Both calls may block for as long as the medium does."""

    def read(self) -> LeaseEntry | None:
        """Return the entry, or None if it can't be read now. May raise `OSError`.

        The entry may be old, so a contender that acts on it must swap.
        """

    def swap(self, expected: LeaseEntry, new: LeaseEntry) -> bool:
        """Replace `expected` by `new`. Return False if another entry was there; nothing has changed then.

        Raise `OSError` if the outcome is not known. A caller may then try again with the same entries, and gets True
        if an earlier try succeeded.
        """


class LeaseRule:
    """One contender: when it may take the lease, and until when it holds it. Times on its own monotonic clock."""

    def __init__(self, owner: str) -> None:
        self.owner = owner  # not empty; names this contender and its restarts on this host
        self.held: LeaseEntry | None = None  # entry that it swapped in last; None: it is a standby
        self._valid_until = 0.0  # end of the lease that is held
        self._seen: LeaseEntry | None = None  # another contender's entry, as last read
        self._since = 0.0  # when that entry was first read

    def __repr__(self) -> str:
        return f"<LeaseRule {self.owner} {'holds' if self.held else 'watches'} {self.held or self._seen}>"

    def poll(self, entry: LeaseEntry, now: float) -> LeaseEntry | None:
        """Return the entry to swap in for this one, which was read at `now`; None: wait, and read again."""
        if entry.verdict is not None:
            return None
        if entry != self._seen:
            self._seen, self._since = entry, now
        known_dead = entry.owner in ("", self.owner)  # our former process has ended, as our starter has seen
        if known_dead or now - self._since > TIMING.failover_ttl + TIMING.failover_margin:
            return LeaseEntry(entry.epoch + 1, 0, self.owner)
        return None

    def renewal(self) -> LeaseEntry:
        """Return the entry to swap in to keep the lease, or to prove that nobody took it. A lease must be held."""
        assert self.held is not None
        return replace(self.held, count=self.held.count + 1)

    def swapped(self, entry: LeaseEntry, began: float) -> None:
        """Record that this entry was swapped in, by a call that began at `began`. The lease runs from then."""
        self.held, self._valid_until = entry, began + TIMING.failover_ttl

    def failed(self) -> None:
        """Record that another contender was quicker. Its entry is watched from the first time that it is read."""
        self.held = self._seen = None

    def holds(self, now: float) -> bool:
        """Return whether something may leave this process now."""
        return self.held is not None and now < self._valid_until

    def released(self) -> LeaseEntry:
        """Return the entry to swap in when this contender stops serving and the job goes on."""
        return replace(self.renewal(), owner="")

    def job_over(self, code: int) -> LeaseEntry:
        """Return the entry to swap in when the job is over. `code`: the job's exit code."""
        return replace(self.renewal(), verdict=code)
