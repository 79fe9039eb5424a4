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


class OpenQuorums:
    """The open quorums. Nearly always there is none, or one for the time of a step."""

    def __init__(self) -> None:
        self.open: tuple[Quorum, ...] = ()  # another tuple when, and only when, it has changed
        self._open: tuple[tuple[Quorum, frozenset[str]], ...] = ()  # the same, with the replica ids of their members
        self.members: frozenset[str] = frozenset()  # of all open quorums

    def __repr__(self) -> str:
        return f"<OpenQuorums {[q.number for q in self.open]}>"

    def begin(self, older: Iterable[Quorum] = ()) -> None:
        """`older`: what a lighthouse without memory knows of those before the one it takes over."""
        self.open, self._open, self.members = (), (), frozenset()
        for quorum in older:
            self.leave(quorum)

    def leave(self, quorum: Quorum) -> None:
        """Another quorum is issued after this one."""
        self._keep((*self._open, (quorum, frozenset([m.replica_id for m in quorum.members]))))

    def received(self, replica_id: str, quorum_id: int) -> None:
        """This member has received this quorum: no older one of its own will be the newest that all members know."""
        if self._open and replica_id in self.members:
            self._keep(tuple([x for x in self._open if x[0].id >= quorum_id or replica_id not in x[1]]))

    def close(self, is_over: Callable[[str], bool]) -> None:
        """Where all members are over nobody can name the quorum any more with a valid lease."""
        if self._open:
            self._keep(tuple([x for x in self._open if not all(map(is_over, x[1]))]))

    def _keep(self, quorums: tuple[tuple[Quorum, frozenset[str]], ...]) -> None:
        if len(quorums) != len(self._open):
            self.open, self._open = tuple([q for q, _ in quorums]), quorums
            self.members = frozenset().union(*[members for _, members in quorums])
