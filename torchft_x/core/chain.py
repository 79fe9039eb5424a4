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
    """The open quorums, from old to new. Nearly always there is none, or one for the time of a step."""

    def __init__(self) -> None:
        self._open: tuple[tuple[Quorum, frozenset[str]], ...] = ()  # with the replica ids of its members

    def __repr__(self) -> str:
        return f"<Chain {[q.number for q in self.open]}>"

    @property
    def open(self) -> tuple[Quorum, ...]:
        return tuple(q for q, _ in self._open)

    def begin(self, older: Iterable[Quorum] = ()) -> None:
        """`older`: what a lighthouse without memory knows of those before the one it takes over."""
        self._open = tuple((q, frozenset(m.replica_id for m in q.members)) for q in older)

    def leave(self, quorum: Quorum, inside: frozenset[str]) -> None:
        """Another quorum is issued after this one, which had these members."""
        self._open = (*self._open, (quorum, inside))

    def received(self, replica_id: str, quorum_id: int) -> None:
        """This member has received this quorum: no older one of its own will be the newest that all members know."""
        if self._open:
            self._open = tuple(x for x in self._open if x[0].id >= quorum_id or replica_id not in x[1])

    def close(self, is_over: Callable[[str], bool]) -> None:
        """Where all members are over nobody can name the quorum any more with a valid lease."""
        if self._open:
            self._open = tuple(x for x in self._open if not all(map(is_over, x[1])))

    def ran(self, inside: frozenset[str]) -> frozenset[str]:
        """Replica ids of these, the members of the present quorum, and of the members of all open ones."""
        return inside.union(*(members for _, members in self._open)) if self._open else inside
