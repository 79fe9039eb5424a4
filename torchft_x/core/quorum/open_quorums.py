"""Quorums before the present one that must be followed, too (R9), because their members may not have left them.

A quorum that is issued may reach only a few of its members, or none. Nothing is committed in it then, but it counts as
the present one. A member of it that was never in the quorum before may carry it, and could go on alone. All members of
the quorum before could then still report truthfully that they know nothing newer. A lighthouse without memory would
believe them (R8), and there would be two histories. So a quorum stays *open* until one of its members is known to have
received a newer one, or all are over. The next quorum must follow every open one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torchft_x.core.types import Quorum


class OpenQuorums:
    """Table of the open quorums. It is nearly always empty, or holds one for the time of a step."""

    def __init__(self) -> None:
        self.open: tuple[Quorum, ...] = ()  # a new tuple exactly when the open quorums change
        self._open: tuple[tuple[Quorum, frozenset[str]], ...] = ()  # each with its members' replica ids
        self.members: frozenset[str] = frozenset()  # replica ids in any open quorum

    def __repr__(self) -> str:
        return f"<OpenQuorums {[q.number for q in self.open]}>"

    def begin(self, older: Iterable[Quorum] = ()) -> None:
        """Start with `older`: the quorums, before the one taken over, that a lighthouse without memory knows of."""
        self.open, self._open, self.members = (), (), frozenset()
        for quorum in older:
            self.leave(quorum)

    def leave(self, quorum: Quorum) -> None:
        """Open this quorum, because another one is issued after it."""
        self._keep((*self._open, (quorum, frozenset([m.replica_id for m in quorum.members]))))

    def received(self, replica_id: str, quorum_id: int) -> None:
        """Drop older open quorums of this member: it has received a newer one, and can't report them as its newest."""
        if self._open and replica_id in self.members:
            self._keep(tuple([x for x in self._open if x[0].id >= quorum_id or replica_id not in x[1]]))

    def close(self, is_over: Callable[[str], bool]) -> None:
        """Drop open quorums whose members are all over: nobody can report them with a valid lease any more."""
        if self._open:
            self._keep(tuple([x for x in self._open if not all(map(is_over, x[1]))]))

    def _keep(self, quorums: tuple[tuple[Quorum, frozenset[str]], ...]) -> None:
        if len(quorums) != len(self._open):
            self.open, self._open = tuple([q for q, _ in quorums]), quorums
            self.members = frozenset().union(*[members for _, members in quorums])
