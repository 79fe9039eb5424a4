"""Describes a checkpoint to the copies in a supervisor's memory, so that it can be written from them after training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchft_x.core.types import State
from torchft_x.transfer.durable import names
from torchft_x.transfer.durable.names import Name
from torchft_x.transfer.durable.shard import outline
from torchft_x.transfer.from_memory.held import KEY, HeldCheckpoint

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager


class InMemory:
    """Link from one rank's `Checkpoint` to its copies in memory. `state` returns the state to save."""

    def __init__(self, manager: Manager, url: str, *, job: str, keep: int, state: Callable[[], Any]) -> None:
        self._manager = manager
        self._url = url
        self._job = job
        self._keep = keep
        self._state = state
        manager.context.memory.describe_with(self._describe)

    def note(self) -> None:
        """Record that the script is at a point where it would save."""
        counters = self._manager.state_dict()
        self._manager.context.memory.note(State(counters["step"], counters["committed_in"]))

    def _describe(self) -> dict[str, Any]:
        options = self._manager.context.options
        counters = self._manager.state_dict()
        held = HeldCheckpoint(
            url=self._url,
            job=self._job,
            writer=name_of(self._manager, counters).writer,
            keep=self._keep,
            outline=outline(self._state(), rank=options.group_rank, ranks=options.group_world_size),
        )
        return {KEY: held.tree()}


def name_of(manager: Manager, counters: dict[str, int]) -> Name:
    """Return the name of the checkpoint that this life of this group writes for a state. All its ranks agree."""
    group, _, life = manager.context.connection.replica_id.partition(":")
    return names.name(counters["step"], f"{group}-{life[:8]}-{counters['committed_in']}")
