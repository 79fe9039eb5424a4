"""Several lighthouses for the same groups: which members a lighthouse must have with it to go on over a quorum.

Lighthouses don't speak with each other. The members of each quorum are the acceptors of a consensus about what follows
it: a group has a session with one lighthouse at a time, hears quorums on that session only, and says in its hello which
it has received last; and nothing is committed in a quorum that one of its members has not received. Hence these rules.

* A quorum *follows* every quorum that is open at its lighthouse: most members of each must be in it (`QuorumIntersection.wins`).
  It carries them (`Quorum.follows`), so that whoever hears of it hears of them.
* A quorum is *closed* when most of its members are known to have received a newer one: another lighthouse that has most
  of them with it hears of that from one of them.
* Who has ended, and whose last words say what it had received last (`LastWord`, or its leave), receives nothing any
  more: it is not counted. That a member has ended is not enough: others may go on in what it had received.
* When nobody is left to be counted, later lives stand for them: a supervisor starts one life after the other, and each
  says what those before it had received last (a *chain*).
* Of two exact halves that goes on which is at the lighthouse that issued the quorum, for that one has only one memory
  (`Quorum.since`).

Why that is safe: let two lighthouses go on over q, neither knowing of the other's quorum, both received by all of their
members. Call M and N the members of q in them, D and E those that the lighthouses don't count. Who is in both received one
of the quorums first, and said so. Whoever is in M and E has said with its last words that it had received the other's
quorum. So M and N lie in q without D and E, have nobody in common, and each is at least half of that: then both are halves
of the same set, and only one lighthouse has issued q. Where one of them counts nobody, it has the last words of all of
the other's; where both count nobody, most of the chains are with each, and the later life of one that is with both knows
what the earlier one received.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torchft_x.core.types import Quorum

PLACES = 16
"""Most lighthouses of one list. An id says in its lowest bits which of them issued it, so that no two issue the same."""


class QuorumIntersection:
    """Part of a lighthouse that is one of several. `place`: its number in the list; `since`: its first id (R1)."""

    def __init__(self, place: int, since: int) -> None:
        self._place = place  # fixed
        self.since = since  # of what it has issued from this id on it has forgotten nothing
        self.ended: dict[str, int] = {}  # replica id -> the quorum it had received last, of those that receive no more
        self._chains: dict[str, str] = {}  # replica id -> chain of lives it belongs to
        self._reached: dict[str, int] = {}  # chain -> newest quorum that one of its lives has received
        self._met: set[int] = set()  # ids of quorums that were open here at some time

    def __repr__(self) -> str:
        return f"<QuorumIntersection {self._place} ended={sorted(self.ended)}>"

    def issued(self, quorum: Quorum) -> bool:
        """Whether this lighthouse has issued it, and knows all that it has issued since."""
        return quorum.id % PLACES == self._place and quorum.id >= self.since

    def wins(self, quorum: Quorum, members: Collection[str]) -> bool:
        """Whether these are enough of it that nobody goes on over it without one of them."""
        counted = [m.replica_id for m in quorum.members if m.replica_id not in self.ended]
        here = sum(r in members for r in counted)
        if not counted:
            counted = [m.replica_id for m in quorum.members]
            present = {self._chains[r] for r in members if r in self._chains}
            here = sum(self._chains.get(r) in present for r in counted)
        return self._are_most(quorum, here, len(counted))

    def closes(self, quorum: Quorum, received: Collection[str]) -> bool:
        """Whether it is closed, if these have received a newer one, and so have those whose last word says so."""
        names = [m.replica_id for m in quorum.members]
        counted = [r for r in names if self.ended.get(r, quorum.id + 1) > quorum.id]
        beyond = sum(r in received or r in self.ended for r in counted)
        if not counted:
            counted = names
            beyond = sum(self._reached.get(self._chains.get(r, ""), 0) > quorum.id for r in names)
        return self._are_most(quorum, beyond, len(counted))

    def received(self, replica_id: str, quorum_id: int) -> None:
        """This life has received this quorum."""
        chain = self._chains.get(replica_id, "")
        if chain and quorum_id > self._reached.get(chain, 0):
            self._reached[chain] = quorum_id

    def _are_most(self, quorum: Quorum, some: int, of: int) -> bool:
        return 2 * some > of or (2 * some == of and self.issued(quorum))

    def lacking(self, quorum: Quorum, members: Collection[str]) -> list[str]:
        """Members that could be added to these; empty: they are enough."""
        if self.wins(quorum, members):
            return []
        names = [m.replica_id for m in quorum.members]
        return [r for r in names if r not in members and r not in self.ended] or names

    def sentence(self, quorum: Quorum, lacking: list[str]) -> str:
        """Why this lighthouse does not go on over a quorum, and what to do."""
        shown = ", ".join(lacking[:8]) + (f" and {len(lacking) - 8} more" if len(lacking) > 8 else "")
        return (
            f"Not enough members of quorum {quorum.id} are at this lighthouse, number {self._place} of several: waiting "
            f"until more of {shown} come over from another one, or until their supervisors tell how they ended. Where "
            "they and their supervisors are lost for good, start the job again, with new lighthouses."
        )

    def end(self, replica_id: str, received: int, chain: str = "") -> None:
        """This member receives nothing any more; that is what it had received last. 0: it never had any."""
        self.ended[replica_id] = max(received, self.ended.get(replica_id, 0))
        self.belongs(replica_id, chain)
        self.received(replica_id, received)

    def belongs(self, replica_id: str, chain: str) -> None:
        """This life belongs to that chain of lives, see `LastWord`."""
        if chain:
            self._chains[replica_id] = chain

    def meet(self, quorums: Iterable[Quorum], known: Collection[Quorum]) -> list[Quorum]:
        """Of these quorums and what they follow: those that were never open here, and may be. From old to new.

        `known`: what is open here. Who issued one of those has known all that it had issued before.
        """
        self._met.update(q.id for q in known)
        found: dict[int, Quorum] = {}
        for quorum in quorums:
            for q in (*quorum.follows, quorum):
                if q.id not in self._met:
                    found[q.id] = q
        present = [*known, *found.values()]
        self._met.update(found)
        return [q for i, q in sorted(found.items()) if not any(_left_behind(q, other) for other in present)]


def _left_behind(quorum: Quorum, other: Quorum) -> bool:
    """Whether the lighthouse that issued both knew this one, and that it was closed, when it issued the other."""
    same = quorum.id % PLACES == other.id % PLACES
    return same and other.since <= quorum.id < other.id and all(q.id != quorum.id for q in other.follows)


def own_id(first: int, place: int | None) -> int:
    """The lowest id from `first` on that this lighthouse may issue. `place` None: there is only one."""
    return first if place is None else first + (place - first) % PLACES
