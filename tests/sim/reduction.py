"""The middle of a step: forward and backward, then one reduction that stands for all buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.collective import Contribution
from tests.sim.data import Gradient, pieces
from torchft_x.core.commit.step import StepPhase
from torchft_x.core.data.ranges import members
from torchft_x.core.data.state import Piece
from torchft_x.core.types import Computed, Part, Ranges, State
from torchft_x.errors import TorchftXError

if TYPE_CHECKING:
    from tests.sim.rank_node import RankNode


class Reduction:
    """Local gradients and their reduction, of one rank over all of its steps."""

    def __init__(self, rank: RankNode) -> None:
        self.done = False  # the present step's reduction has a result, or never will
        self.result: tuple[Contribution, ...] | None = None
        self._rank = rank
        self._base = 0  # parameters from which the gradients were computed
        self.kept: State | None = None  # state at which the local gradients were computed; None: there are none
        self.part: Part | None = None  # their part; None: the script has not asked for its number
        self._slots: Ranges | None = None  # their slots, if data is dealt
        self._samples: tuple[tuple[Piece, ...], ...] = ()  # samples of each of these slots
        self._computing = 0  # id of the present forward; 0: none
        self._computed = False  # the local gradients are complete

    def forget(self) -> None:
        """Reset for a new step. A forward of an older step is ignored."""
        self.done = self._computed = False
        self.result, self._computing, self.kept, self.part = None, 0, None, None
        self._slots, self._samples = None, ()

    def keep(self) -> None:
        """Retain the local gradients for another quorum."""
        self.done, self.result = False, None

    @property
    def computed(self) -> Computed | None:
        """State at which, and part and slots for which, the local gradients were computed; None without either."""
        return None if self.kept is None or self.part is None else Computed(self.kept, self.part, self._slots)

    @property
    def claim(self) -> Ranges:
        """Slots whose gradients this rank keeps, as it reports them inside a step that failed."""
        return self._slots or () if self._rank.step.may_redo else ()

    def compute(self) -> None:
        rank, world = self._rank, self._rank.world
        self.forget()
        self._base, self._computing = rank.value, world.next_id()
        self.kept = None if rank.step.torn else rank.step.state  # gradients of a torn rank are useless
        seconds = world.compute_seconds(rank.node.group)
        world.after(seconds, rank.process, self._on_computed, self._computing)

    def _on_computed(self, nth: int) -> None:
        if (
            not self._rank.holds(self._on_computed, nth)
            and nth == self._computing
            and self._rank.step.phase in (StepPhase.ASKING, StepPhase.RUNNING)
        ):
            self._computed = True
            self.begin()

    def begin(self) -> None:
        """Reduce, perhaps once more (R15), if all that it needs is there.

        After an error it ends at once, and the step will be dropped.
        """
        rank = self._rank
        if not (rank.ready and self._computed) or self.done or rank.wait == "reduce":
            return
        if self.part is None:
            self._take_part()
        if rank.step.error is not None or rank.mesh is None:
            self.end()
            return
        rank.wait = "reduce"
        rank.deadlines.arm("reduce", rank.waits())
        contributes = rank.step.rank is not None
        gradient = (rank.who, rank.step.top.step, self._base, self.part) if contributes else None
        if gradient is not None and rank.step.deal is not None:
            gradient = Gradient(gradient, self._samples, rank.step.scale())
        rank.world.fabric.reduce(rank, rank.mesh, gradient)
        rank.world.reach(rank.node, "reduce")

    def _take_part(self) -> None:
        """Take the part, and the samples if data is dealt, for which the local gradients are computed."""
        step, options = self._rank.step, self._rank.world.config.data
        self.part = self._rank.part
        if step.deal is not None:
            slots = step.deal.share(step.rank)
            self._slots = slots if self.kept == step.top else None
            self._samples = tuple(
                pieces(step.data, slot, options) for slot in members(step.data.present(slots, options))
            )

    def on_failed(self, error: TorchftXError) -> None:
        self._rank.failures.fail(error)
        self.end()

    def end(self) -> None:
        rank = self._rank
        rank.deadlines.disarm("reduce")
        rank.budget.end_wait(rank.world.now)
        self.done, rank.wait = True, ""
        rank.voting.maybe_vote()
