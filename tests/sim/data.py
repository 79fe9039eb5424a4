"""Dealt data: what the samples of a gradient are, and the checker's own ledger of the samples in the parameters (I10).

A ledger is an integer in which bit n stands for the n-th sample of the training, counted over all epochs. Of streams, the
n-th items of all streams are epoch n, and a stream's number is the position in it. The ledger travels with the parameters in `Copy`, as the position in the data does, but only the checker reads it. It grows by the samples that
the ranks had computed, not by what was reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torchft_x.core.data.options import DataOptions
from torchft_x.core.data.state import Piece, Position, StreamState
from torchft_x.core.types import Part, State

if TYPE_CHECKING:
    from tests.sim.rank_node import RankNode
    from tests.sim.world import World


class Copy(NamedTuple):
    """What is copied of a rank: the parameters, the ledger of their samples, and the position in the data."""

    value: int
    trained: int
    data: Position | None


def pieces(data: Position, slot: int, options: DataOptions) -> tuple[Piece, ...]:
    """Return the samples of a slot of the next step, or the item of its stream."""
    if isinstance(data, StreamState):
        return ((data.counts[slot], slot, slot + 1),)
    return data.slot(slot, options)


class Gradient(tuple):  # type: ignore[type-arg]
    """A contribution with the samples of its slots.

    It compares and prints as the contribution alone: digests of results must not depend on whether data is dealt.
    """

    slots: tuple[tuple[Piece, ...], ...]
    scale: float

    def __new__(
        cls, contribution: tuple[str, int, int, Part], slots: tuple[tuple[Piece, ...], ...], scale: float
    ) -> Gradient:
        """Make a contribution of these `slots`, which was multiplied by `scale` before the sum."""
        self = super().__new__(cls, contribution)
        self.slots, self.scale = slots, scale
        return self


class SampleLedger:
    """Check of I10: each sample is committed exactly once per epoch, and equal states have equal positions."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._first: dict[State, tuple[int, Position | None]] = {}  # ledger and position of who committed it first

    def on_committed(self, rank: RankNode, state: State, result: tuple[Gradient, ...]) -> None:
        """Add the samples of a committed result to the ledger of a rank's parameters."""
        who, violated = rank.process.name, self._world.violated
        for gradient in result:
            for epoch, start, stop in (piece for slot in gradient.slots for piece in slot):
                bits = self._bits(epoch, start, stop)
                if rank.trained & bits:
                    violated("I10", f"{who} commits {state} with samples {start} to {stop} of epoch {epoch} once more")
                rank.trained |= bits
        count = sum(len(gradient.slots) for gradient in result)
        for gradient in result:
            if gradient.slots and round(1 / gradient.scale) != count:
                violated("I10", f"{who} commits {state} of {count} slots, and {gradient[0]} scales by {gradient.scale}")
        self.check(rank, state)
        _, *found = rank.copy
        if self._first.setdefault(state, tuple(found)) != tuple(found):
            violated("I10", f"{who} commits {state} with another position in the data than another member did")

    def check(self, rank: RankNode, state: State) -> None:
        """Check that a rank's position in the data tells exactly the samples that are in its parameters."""
        data = rank.step.data
        if data is None:
            return
        if isinstance(data, StreamState):
            told = sum(
                self._bits(n, stream, stream + 1) for stream, count in enumerate(data.counts) for n in range(count)
            )
        else:
            told = self._bits(0, 0, data.epoch * self._used + data.cursor)
            for piece in data.debt:
                told &= ~self._bits(*piece)
        if told != rank.trained:
            lost, more = told & ~rank.trained, rank.trained & ~told
            self._world.violated("I10", f"{rank.process.name} holds {state} and {data}, which misses {more.bit_count()} "
                                 f"trained samples and has {lost.bit_count()} that were not trained")  # fmt: skip

    def _bits(self, epoch: int, start: int, stop: int) -> int:
        """Return the bits of these positions of an epoch."""
        return ((1 << stop - start) - 1) << epoch * self._used + start

    @property
    def _used(self) -> int:
        """Number of samples of an epoch that are trained, or of streams."""
        config = self._world.config
        assert config.data is not None
        return config.data.slots if config.streams else config.data.used(config.samples)
