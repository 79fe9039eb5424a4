"""The directory that all lighthouses of a run share: a lease's entry and the journals of its epochs.

It models rpc.lighthouse.failover: lease_directory and lease_journal. While the directory is away it can't be read or
changed, and a writer hangs until it is back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchft_x.core.journal import JournalEntry
from torchft_x.core.lighthouse.lease import LeaseEntry

if TYPE_CHECKING:
    from tests.sim.base import Clock, Process
    from tests.sim.world import World


class SharedDirectory:
    """A `Register` for the lease, with one journal file per epoch."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.entry = LeaseEntry(0)
        self.journals: dict[int, tuple[JournalEntry | None, Clock | None]] = {}  # epoch -> content, its clock
        self.away = False
        self._hanging: list[Process] = []  # processes that hang in a write

    def read(self) -> LeaseEntry | None:
        return None if self.away else self.entry

    def swap(self, expected: LeaseEntry, new: LeaseEntry) -> bool:
        if self.away or self.entry != expected:
            return False
        self.entry = new
        return True

    def inherit(self, clock: Clock) -> JournalEntry | None:
        """Begin the file of a new epoch with the newest entry before it. Return that entry, or None.

        Its times are dropped if they are of another clock, that is of another host or from before a restart of the
        host.
        """
        epoch = self.entry.epoch
        found, written_by = self.journals.get(max((e for e in self.journals if 0 < e < epoch), default=0), (None, None))
        self.journals = {e: x for e, x in self.journals.items() if e >= epoch}
        self.journals[epoch] = found, written_by
        if found is None or written_by is clock:
            return found and replace(found, boot_id="")
        return replace(found, leased=None, absent=tuple(replace(absent, leased=None) for absent in found.absent))

    def hang(self, process: Process) -> None:
        """Stop a process that writes while the directory is away, until it is back."""
        self._hanging.append(process)
        self._world.pause(process, seen=False)

    def come_back(self) -> None:
        self.away = False
        hanging, self._hanging = self._hanging, []
        for process in hanging:
            self._world.resume(process)
