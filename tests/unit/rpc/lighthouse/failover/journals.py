"""Journals of lighthouses, and what is kept in them."""

from __future__ import annotations

from pathlib import Path

from tests.unit.core.scene import member, quorum
from torchft_x.core.journal import JournalEntry, MemberEntry
from torchft_x.core.types import Life, Quorum, State
from torchft_x.rpc.codec import messages
from torchft_x.rpc.lighthouse.failover.journal import Found, Journal, fingerprint, open_ledger

RUN = fingerprint("secret", "job")
KIN = (MemberEntry("a:1", Life(2, 5.0, "token-a"), "boot"), MemberEntry("b:1", Life(0, 1.0, "token-b"), "boot"))


def made(id: int = 7, members: int = 2, **fields: object) -> Quorum:
    names = [f"{chr(ord('a') + i)}:1" for i in range(members)]
    return quorum(*(member(n, State(3, id - 1)) for n in names), id=id, **fields)


def opened(folder: Path, *, boot: str = "boot", run: bytes = RUN) -> Journal:
    ledger = open_ledger(str(folder / "state"), boot_id=boot, run=run)
    assert ledger is not None
    return ledger


def keep(ledger: Journal, value: Quorum, granted: int = 4, kin: tuple[MemberEntry, ...] = KIN) -> JournalEntry:
    legacy = JournalEntry(value, granted, kin)
    ledger.keep(legacy, messages.quorum_bytes(value))
    return legacy


def read(folder: Path, **who: object) -> Found:
    ledger = opened(folder, **who)  # type: ignore[arg-type]
    try:
        return ledger.read()
    finally:
        ledger.close()
