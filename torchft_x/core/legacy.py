"""What a lighthouse leaves to the next one at its address: all it must remember to go on as if nothing had happened.

Its shell keeps this where it survives the process (rpc/ledger.py), and writes it *before* a quorum or a grant is sent.
So whoever finds it knows that no newer quorum and no higher grant exists (R8c).
"""

from __future__ import annotations

from dataclasses import dataclass

from torchft_x.core.types import Life, Quorum


@dataclass(frozen=True, slots=True)
class Kin:
    """What a member has told in its hello, and the quorum does not say: by it reports of deaths find the member."""

    replica_id: str
    life: Life
    boot_id: str = ""
    runs_on: bool = False


@dataclass(frozen=True, slots=True)
class Legacy:
    """The newest quorum that was ever issued, and what was known about its members."""

    quorum: Quorum
    granted_through: int = 0
    """Highest step ever granted in it."""
    kin: tuple[Kin, ...] = ()
    """Of its members that spoke on sessions."""
    open: tuple[Quorum, ...] = ()
    """Quorums before it that must be followed, too (`core.chain`), from old to new."""
