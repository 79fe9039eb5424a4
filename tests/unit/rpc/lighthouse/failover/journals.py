"""Journals of lighthouses, and entries for them."""

from __future__ import annotations

from pathlib import Path

from tests.unit.core.scene import member, quorum
from torchft_x.core.journal import JournalEntry, MemberEntry
from torchft_x.core.types import AttemptId, Quorum, State
from torchft_x.rpc.codec import messages
from torchft_x.rpc.lighthouse.failover.journal import Journal, JournalContents, fingerprint, open_local_journal

RUN = fingerprint("secret", "job")
MEMBERS = (
    MemberEntry("a:1", AttemptId(2, 5.0, "token-a"), "boot"),
    MemberEntry("b:1", AttemptId(0, 1.0, "token-b"), "boot"),
)


def made(id: int = 7, members: int = 2, **fields: object) -> Quorum:
    names = [f"{chr(ord('a') + i)}:1" for i in range(members)]
    return quorum(*(member(n, State(3, id - 1)) for n in names), id=id, **fields)


def opened(folder: Path, *, boot: str = "boot", run: bytes = RUN) -> Journal:
    journal = open_local_journal(str(folder / "state"), boot_id=boot, run=run)
    assert journal is not None
    return journal


def keep(journal: Journal, value: Quorum, granted: int = 4, members: tuple[MemberEntry, ...] = MEMBERS) -> JournalEntry:
    entry = JournalEntry(value, granted, members)
    journal.keep(entry, messages.pack(value))
    return entry


def read(folder: Path, **who: object) -> JournalContents:
    journal = opened(folder, **who)  # type: ignore[arg-type]
    try:
        return journal.read()
    finally:
        journal.close()
