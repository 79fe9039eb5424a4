"""Which of several lighthouses serves: the one that holds the lease, an entry in a register that all of them reach.

The register is changed by compare-and-swap only (`Register.swap`): of all who saw the same entry one replaces it. The
holder advances the entry's `count` now and then, and after each write to the journal, before anything leaves the process
that was written there. A standby takes the lease over when the entry has stood unchanged for longer than the holder may
serve without advancing it; the time is counted on its own clock, so that no two clocks are compared. That is a guess, and
a wrong one does no harm: the swap succeeds only if the entry still is the one that was watched, and from then on the former
holder's next swap fails. `docs/decisions/0045-a-standby-behind-a-lease.md` has the argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from torchft_x.timing import TIMING


@dataclass(frozen=True, slots=True)
class LeaseEntry:
    """What the register holds."""

    epoch: int
    """Grows by one with each holder; 0: nobody has held it yet."""
    count: int = 0
    """Grows by one with each renewal."""
    owner: str = ""
    """Of the epoch, random; empty: its holder has given it back, so that nobody need wait."""
    verdict: int | None = None
    """The job is over, with this exit code: nobody takes it any more."""


class Register(Protocol):
    """One `LeaseEntry` that survives any host. Both calls may block for as long as the medium does."""

    def read(self) -> LeaseEntry | None:
        """The entry, perhaps an old one: who acts on it swaps. None: it can't be read now. Raises `OSError`."""

    def swap(self, expected: LeaseEntry, new: LeaseEntry) -> bool:
        """Put `new` in the place of `expected`. False: another entry was there, and nothing has changed. Raises `OSError`
        where that is not known; it may be tried again with the same entries, and is True if an earlier try succeeded."""


class LeaseRule:
    """One contender's side: when it may take the lease, and how long it holds it. Times on its own monotonic clock."""

    def __init__(self, owner: str) -> None:
        self.owner = owner  # not empty; of this contender, and of its next lives on this host
        self.held: LeaseEntry | None = None  # as swapped in last; None: it is a standby
        self._valid_until = 0.0  # of what is held
        self._seen: LeaseEntry | None = None  # another's entry, as read last
        self._since = 0.0  # when that was read first

    def __repr__(self) -> str:
        return f"<LeaseRule {self.owner} {'holds' if self.held else 'watches'} {self.held or self._seen}>"

    def look(self, entry: LeaseEntry, now: float) -> LeaseEntry | None:
        """The register holds this, read at `now`: what to swap in for it; None: wait and look again."""
        if entry.verdict is not None:
            return None
        if entry != self._seen:
            self._seen, self._since = entry, now
        known_dead = entry.owner in ("", self.owner)  # our former life: who started us has seen it end
        if known_dead or now - self._since > TIMING.failover_ttl + TIMING.failover_margin:
            return LeaseEntry(entry.epoch + 1, 0, self.owner)
        return None

    def renewal(self) -> LeaseEntry:
        """What to swap in to hold it for longer, or to prove that nobody has taken it. A lease must be held."""
        assert self.held is not None
        return replace(self.held, count=self.held.count + 1)

    def swapped(self, entry: LeaseEntry, began: float) -> None:
        """That was swapped in, by a call that began then."""
        self.held, self._valid_until = entry, began + TIMING.failover_ttl

    def failed(self) -> None:
        """Another one was quicker: what it has put there is to be watched from its first sight."""
        self.held = self._seen = None

    def holds(self, now: float) -> bool:
        """Whether something may leave this process now."""
        return self.held is not None and now < self._valid_until

    def released(self) -> LeaseEntry:
        """What to swap in when it stops serving, and the job goes on."""
        return replace(self.renewal(), owner="")

    def job_over(self, code: int) -> LeaseEntry:
        """What to swap in when the job is over."""
        return replace(self.renewal(), verdict=code)
