"""Quorums before the present one that must be followed, too (R9): of some it is not known that they were left behind.

A quorum that is issued may be received by a few of its members, or by none. Nothing is committed in it then, but it
counts as the present one, and one of its members that was never in the quorum before may carry it. If that member went
on alone, all members of the quorum before could still say in person that they know nothing newer; a lighthouse without
memory would take them at their word (R8), and there would be two histories. So a quorum stays *open* until one of its
members is known to have received a newer one, or all are over. Whoever goes on must follow every open quorum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torchft_x.core.types import Quorum


class Chain:
    """The open quorums, from old to new. Nearly always there is none."""

    def __init__(self) -> None:
        self.open: tuple[Quorum, ...] = ()

    def __repr__(self) -> str:
        return f"<Chain {[q.number for q in self.open]}>"

    def begin(self, older: Iterable[Quorum] = ()) -> None:
        """`older`: what a lighthouse without memory knows of those before the one it takes over."""
        self.open = tuple(older)

    def leave(self, quorum: Quorum) -> None:
        """Another quorum is issued after this one."""
        self.open = (*self.open, quorum)

    def received(self, replica_id: str, quorum_id: int) -> None:
        """This member has received this quorum: no older one of its own will be the newest that all members know."""
        if self.open:
            self.open = tuple(q for q in self.open if q.id >= quorum_id or q.member(replica_id) is None)

    def close(self, is_over: Callable[[str], bool]) -> None:
        """Where all members are over nobody can name the quorum any more with a valid lease."""
        if self.open:
            self.open = tuple(q for q in self.open if not all(is_over(m.replica_id) for m in q.members))

    @property
    def members(self) -> frozenset[str]:
        """Replica ids of all members of open quorums."""
        return frozenset(m.replica_id for q in self.open for m in q.members) if self.open else frozenset()
