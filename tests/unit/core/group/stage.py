"""A group server without I/O for tests: calls are numbered, effects are returned as lists, the test sets the time."""

from __future__ import annotations

from typing import Any

from tests.unit.core.scene import OURS, member, of, quorum
from torchft_x.core.group.machine import Group, GroupConfig
from torchft_x.core.messages.group import (
    Ask,
    GroupEffect,
    GroupEvent,
    GroupVote,
    QuorumArrived,
    QuorumReply,
    SessionUp,
    Vote,
)
from torchft_x.core.messages.lighthouse import Join
from torchft_x.core.types import AttemptId, Quorum, State

NAME = "g:1"


class Stage:
    """A group with calls numbered 1, 2, ... A step that is not 0 was committed in quorum 7 unless `state` is given."""

    def __init__(
        self, world_size: int = 1, *, connected: bool = True, step_seconds: float = 0.0, **config: Any
    ) -> None:
        named: dict[str, Any] = {"replica_id": NAME, "address": "http://g", "store_address": "g-store"}
        said: dict[str, Any] = {"library": OURS, "attempt_id": AttemptId(2, 5.0, "t"), "boot_id": "boot"}
        self.group = Group(GroupConfig(**{**named, **said, "world_size": world_size, **config}), 0.0)
        self.ranks = world_size
        self.step_seconds = step_seconds
        self.now = 0.0
        self.calls = 0
        if connected:
            assert self.feed(SessionUp()) == []

    def feed(self, event: GroupEvent) -> list[GroupEffect]:
        return self.group.handle(event, self.now)

    def call(self) -> int:
        self.calls += 1
        return self.calls

    def ask(self, rank: int = 0, step: int = 0, *, state: State | None = None, **fields: Any) -> list[GroupEffect]:
        at = state or State(step, 7 if step else 0)
        return self.feed(Ask(self.call(), rank, at, step_seconds=self.step_seconds, **fields))

    def vote(self, *, step: int = 0, quorum_id: int | None = None, **fields: Any) -> list[GroupEffect]:
        """Vote with all ranks, yes unless told otherwise."""
        held = self.group.quorum
        in_hand = held.id if held else 0
        return self.feed(GroupVote(step, in_hand if quorum_id is None else quorum_id, **fields))

    def peer_votes(self, rank: int = 0, ok: bool = True, *, step: int = 0) -> list[GroupEffect]:
        """Vote as a rank that runs torchft."""
        return self.feed(Vote(self.call(), rank, step, ok))

    def commit(self, step: int) -> None:
        assert self.vote(step=step)

    def quorum(self, id: int = 7, **fields: Any) -> Quorum:
        """Return a quorum of this group and h:1, both at step 0."""
        return quorum(member(NAME), member("h:1"), id=id, **fields)

    def arrive(self, id: int = 7, **fields: Any) -> list[GroupEffect]:
        return self.feed(QuorumArrived(self.quorum(id, **fields)))

    def training(self, **fields: Any) -> Stage:
        """Bring the group into quorum 7, with all ranks answered at time 0."""
        for rank in range(self.ranks):
            self.ask(rank)
        assert of(QuorumReply, self.arrive(**fields))
        return self


def joins(effects: list[GroupEffect]) -> list[Join]:
    return of(Join, effects)
