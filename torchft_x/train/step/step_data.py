"""Samples of the current step, which an `ElasticSampler` takes and the reducer sums the gradients of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torchft_x.core.data.deal import Deal
from torchft_x.core.data.options import DataOptions
from torchft_x.core.data.position import Position
from torchft_x.core.data.tree import Node, nodes_of
from torchft_x.core.types import Ranges
from torchft_x.errors import ConfigError, StepError
from torchft_x.train.context.context import RankContext
from torchft_x.train.step.dealt import Dealt, DealtApart

if TYPE_CHECKING:
    from torchft_x.train.step.step_loop import StepLoop

INCOMPLETE = "the step is ended before the loop over step() of its ElasticLoader or ElasticSampler has ended."


class StepData:
    """Slots of the current step, and the one that is computed at present. Used by the training thread."""

    def __init__(self, context: RankContext, steps: StepLoop) -> None:
        self.dealt: Dealt | DealtApart | None = None  # slots of the step, once the script has asked for them
        self.slot: int | None = None  # slot of this backward; None: its gradient does not count
        self.accumulates = False  # gradients of this backward only accumulate: more of the step's slots follow
        self.reproducible = False  # slots are summed in a fixed order
        self.deal_apart: Callable[[], DealtApart] | None = None  # in place of `deal`, if groups train apart
        self._context = context
        self._steps = steps
        self._warned = 0  # id of the newest quorum in which this group was warned that it has no slots

    def use(self, position: Position, options: DataOptions) -> None:
        """Deal the data of every step from now on, beginning at `position` unless one was restored from a checkpoint.

        Raises `ConfigError` after the first step, for a second time, and if the restored position is one in other data.
        """
        step = self._context.step
        with self._context.failures.lock:
            if self._steps.round is not None or step.data_options is not None:
                raise ConfigError("a Manager takes one ElasticLoader, Sampler or Streams, made before the first step.")
            step.deal_data(position, options)

    def start(self) -> None:
        """Begin a step, whose slots nobody has asked for yet."""
        self.dealt, self.slot, self.accumulates = None, None, False

    def deal(self) -> Dealt | DealtApart | None:
        """Return the slots of the current step, after waiting for its quorum; None in a rehearsal."""
        if self._steps.rehearsal.is_on:
            return None
        if self.deal_apart is not None:
            self.dealt = self.deal_apart()
            return self.dealt
        self._steps.wait_quorum()
        step, role = self._context.step, self._steps.role
        with self._context.failures.lock:
            if step.data is None or step.data_options is None or step.deal is None or role is None or role.deal is None:
                raise StepError("this step's data is not dealt: make the ElasticLoader before the first step.")
            dealt = self.dealt = Dealt(step.data, step.data_options, step.deal, role.deal, step.rank)
            self.reproducible = step.data_options.reproducible
        self._warn_if_idle(dealt, role.quorum.id)
        return dealt

    def _warn_if_idle(self, dealt: Dealt, quorum_id: int) -> None:
        """Warn once in a quorum if this group has no slot in any step of it. Rank 0 does."""
        idle = dealt.number is not None and not dealt.later.share(dealt.number)
        if idle and quorum_id != self._warned and self._context.options.group_rank == 0:
            self._warned = quorum_id
            self._context.log.warning(
                "this group contributes nothing: a step has %s slots, which %s groups share. Choose a larger global_batch or a "
                "smaller micro_batch, or more streams.", dealt.options.slots, len(dealt.later.given),
            )  # fmt: skip

    def incomplete(self) -> bool:
        """Return whether the script has left out slots of this step. Waits for its quorum, which deals them."""
        if self._context.step.data_options is None or self.deal_apart is not None:
            return False
        self._steps.wait_quorum()
        return self.dealt is None or self.accumulates

    def nodes(self) -> tuple[list[list[Node]], int]:
        """Return the nodes that each member of the quorum sums by itself, and the number of slots (reproducible steps)."""
        step, role = self._context.step, self._steps.role
        with self._context.failures.lock:
            deal, options = step.deal, step.data_options
        if deal is None or options is None or role is None:
            raise StepError("this step's data is not dealt.")
        number = {member: i for i, member in enumerate(role.part.contributors)}
        return [nodes_of(deal.share(number.get(member))) for member in role.plan.replica_ids], options.slots

    def settle_apart(self, slots: Ranges) -> None:
        """Let the commit of the current quorum settle these slots, which its members have trained apart."""
        role = self._steps.role
        assert role is not None, "its quorum has come"
        with self._context.failures.lock:
            self._context.step.deal = Deal((), (), slots, lanes=role.plan.replica_world_size)
