"""The process group of one group rank over all members of a quorum: collectives match by their order, nothing else.

A mesh is a value. A member takes the outcome of the collective it is in when every member has posted its part, however
late; an error it may take as soon as another member has left (died, aborted, gone to a newer process group).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Mesh:
    config_id: int
    rank: int
    members: tuple[str, ...]
    ops: tuple[tuple[Row | None, ...], ...]  # collectives that somebody has not finished: a row per member
    done: tuple[int, ...]  # how many of these a member has finished
    left: frozenset[str]

    def post(self, who: str, row: Row) -> Mesh:
        i = self.members.index(who)
        nth = self.done[i]
        ops = self.ops if nth < len(self.ops) else (*self.ops, (None,) * len(self.members))
        op = tuple(row if j == i else r for j, r in enumerate(ops[nth]))
        return replace(self, ops=(*ops[:nth], op, *ops[nth + 1 :]))

    def take(self, who: str) -> Mesh:
        """`who` has finished the collective it was in."""
        i = self.members.index(who)
        return replace(self, done=tuple(n + (j == i) for j, n in enumerate(self.done))).trimmed()

    def leave(self, who: str) -> Mesh:
        return replace(self, left=self.left | {who}).trimmed()

    def trimmed(self) -> Mesh:
        """Without collectives that all have finished who are still here."""
        here = [n for name, n in zip(self.members, self.done, strict=True) if name not in self.left]
        over = min(here, default=len(self.ops))
        return replace(self, ops=self.ops[over:], done=tuple(max(0, n - over) for n in self.done))

    def outcome(self, who: str) -> Row | None:
        """What `who` gets if its collective ends well; None if it can't yet."""
        nth = self.done[self.members.index(who)]
        rows = self.ops[nth] if nth < len(self.ops) else ()
        if not rows or any(r is None for r in rows) or who in self.left:
            return None
        kinds = {"row" if r is not None and r[0] == "row" else "gradients" for r in rows}
        if len(kinds) > 1:
            return None  # they wait for each other in different collectives
        if kinds == {"row"}:
            return tuple(min(column) for column in zip(*(r[1] for r in rows if r is not None), strict=True))
        return tuple(sorted(r[1:] for r in rows if r is not None and r[0] == "gradient"))

    def disturbed(self, who: str) -> bool:
        """Whether `who` may see an error."""
        return bool(self.left)


def new_mesh(config_id: int, rank: int, members: tuple[str, ...], left: frozenset[str]) -> Mesh:
    return Mesh(config_id, rank, members, (), (0,) * len(members), left)
