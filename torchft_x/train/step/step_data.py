"""Samples of the current step, which an `ElasticSampler` takes and the reducer sums the gradients of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from torchft_x.core.commit.slot_check import SlotCheck, compares_whole_state
from torchft_x.core.data.deal import Deal, lane_slot
from torchft_x.core.data.options import DataOptions
from torchft_x.core.data.ranges import members
from torchft_x.core.data.reduction_tree import Node, nodes_of
from torchft_x.core.data.state import Position
from torchft_x.core.types import Ranges
from torchft_x.errors import ConfigError, StepError
from torchft_x.train.context.context import RankContext
from torchft_x.train.context.tensor_digest import fold, read_sums, sum_words

if TYPE_CHECKING:
    from torchft_x.train.step.step_loop import StepLoop


@dataclass(frozen=True)
class DealtStep:
    """Slots of a step in which all groups average their gradients."""

    data: Position
    options: DataOptions
    deal: Deal
    later: Deal  # deal of the next steps, unless the quorum changes
    number: int | None  # this group's number among the contributors; None: it contributes zeros
    compared: int | None = None  # slot whose gradient is compared with that of other groups

    @property
    def slots(self) -> list[int]:
        """Slots that this group computes: `extra`, then its own ones in rising order."""
        own = members(self.data.present(self.deal.share(self.number), self.options))
        return own if self.extra is None else [self.extra, *own]

    @property
    def extra(self) -> int | None:
        """Slot of another group, computed to compare its gradient, which does not count."""
        return None if self.compared in members(self.deal.share(self.number)) else self.compared

    def upcoming(self) -> Iterator[tuple[Position, int]]:
        """Yield the slots of the next steps, if no group is lost or joins. Endless, or empty."""
        step = replace(self, compared=None)
        while self.later.share(self.number):
            step = replace(step, data=step.data.commit(step.deal.slots, step.options), deal=self.later)
            yield from ((step.data, slot) for slot in step.slots)


@dataclass(frozen=True)
class DealtInnerStep:
    """Slot of an inner step of a group that trains apart."""

    data: Position
    options: DataOptions
    step: int  # inner steps since the last exchange
    lane: int
    compared = extra = None  # groups that train apart have different gradients

    @property
    def slots(self) -> list[int]:
        """Slots of the inner step: a single one."""
        return [lane_slot(self.step, self.lane, self.data.lanes, self.options.period)]

    def upcoming(self) -> Iterator[tuple[Position, int]]:
        """Yield the slots of the next inner steps, if no group is lost or joins. Endless."""
        data, step = self.data, self.step
        while True:
            step += 1
            if step == self.options.period:
                whole = ((0, data.lanes * self.options.period),)
                data, step = data.commit(whole, self.options), 0
            yield data, lane_slot(step, self.lane, data.lanes, self.options.period)


class StepData:
    """Slots of the current step, and the one that is computed at present. Used by the training thread."""

    def __init__(self, context: RankContext, steps: StepLoop) -> None:
        self.dealt: DealtStep | DealtInnerStep | None = None  # slots of the step, once the script has asked for them
        self.slot: int | None = None  # slot of this backward; None: its gradient does not count
        self.next_slot: int | None = None  # slot of the next backward of the step; None: this is the last one
        self.reproducible = False  # slots are summed in a fixed order
        self.deal_inner_step: Callable[[], DealtInnerStep] | None = None  # in place of `deal`, if groups train apart
        self.check: SlotCheck | None = None  # compares a slot's gradient now and then; None: none is ever compared
        self._sums: list[torch.Tensor] = []  # digests of the gradients of the slot that is compared; empty: none
        self._context = context
        self._steps = steps
        self._nodes: tuple[Deal, list[list[Node]]] | None = None  # nodes of the deal that was asked for last
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
        self.check = SlotCheck() if options.check_every else None

    def start(self) -> bool | None:
        """Begin a step, whose slots nobody has asked for yet. Return `compares_whole_state`, or None."""
        self.dealt, self.slot, self.next_slot, self._sums = None, None, None, []
        step = self._context.step
        if self.check is None or step.data_options is None:
            return None
        return compares_whole_state(self.check, step.state, step.data_options)

    def deal(self) -> DealtStep | DealtInnerStep | None:
        """Return the slots of the current step, after waiting for its quorum; None in a rehearsal.

        Raises `StepError` if they were returned before: the script would train on them twice.
        """
        if self._steps.rehearsal.is_on:
            return None
        if self.deal_inner_step is not None:
            self.dealt = self.deal_inner_step()
            return self.dealt
        if self.dealt is not None:
            raise StepError("step() was called twice in a step; call it once after each zero_grad().")
        self._steps.wait_quorum()
        step, role = self._context.step, self._steps.role
        with self._context.failures.lock:
            if step.data is None or step.data_options is None or step.deal is None or role is None or role.deal is None:
                raise StepError("this step's data is not dealt: make the ElasticLoader before the first step.")
            check = self.check
            compared = None if check is None else check.slot(step.top, step.data_options, step.deal, step.rank)
            dealt = self.dealt = DealtStep(step.data, step.data_options, step.deal, role.deal, step.rank, compared)
            self.reproducible = step.data_options.reproducible
        self._warn_if_idle(dealt, role.quorum.id)
        return dealt

    def _warn_if_idle(self, dealt: DealtStep, quorum_id: int) -> None:
        """Warn once in a quorum if this group has no slot in any step of it. Rank 0 does."""
        idle = dealt.number is not None and not dealt.later.share(dealt.number)
        if idle and quorum_id != self._warned and self._context.options.group_rank == 0:
            self._warned = quorum_id
            self._context.log.warning(
                "this group contributes nothing: a step has %s slots, which %s groups share. Choose a larger global_batch or a "
                "smaller micro_batch, or more streams.", dealt.options.slots, len(dealt.later.given),
            )  # fmt: skip

    def rest(self) -> None:
        """Let the current step train nothing: its commit leaves the position in the data where it is."""
        with self._context.failures.lock:
            self._context.step.deal = None

    def each_slot(self, dealt: DealtStep | DealtInnerStep | None) -> Iterator[int | None]:
        """Yield each slot of the step that was `dealt`, before its backward; None, once, if this group has none.

        Raises `StepError` if that step is over.
        """
        slots = [] if dealt is None else dealt.slots
        if not slots:
            self.slot = None
            yield None
        for i, slot in enumerate(slots, 1):
            if self.dealt is not dealt:
                raise StepError("the loop over step() goes on after its step has ended; begin a new one for each step.")
            self.slot, self.next_slot = slot, slots[i] if i < len(slots) else None
            yield slot

    def is_compared(self, slot: int | None) -> bool:
        """Return whether the gradient of this slot is compared with that of other groups (reproducible steps)."""
        return slot is not None and self.dealt is not None and slot == self.dealt.compared

    def compute_digest(self, grads: Sequence[torch.Tensor | None]) -> None:
        """Compute the digest of the present slot's gradient, which is compared."""
        # A gradient is missing here and all zeros there, and is -0.0 here and 0.0 there, if the script keeps zeros in `.grad`.
        self._sums = [torch.zeros((), dtype=torch.int64) if g is None else sum_words(g + 0.0) for g in grads]

    def digest(self) -> int:
        """Return the 64-bit digest of the compared gradient; 0 if this rank has computed none."""
        return fold(read_sums(self._sums)) or 1 if self._sums else 0

    @property
    def counts(self) -> bool:
        """Whether the gradient of the present slot is in the step's sum (reproducible steps)."""
        return self.dealt is not None and self.slot != self.dealt.extra

    @property
    def trains_apart(self) -> bool:
        """Whether this group trains apart. Only its exchanges then know when others could go on from its state."""
        return self.deal_inner_step is not None

    def mistake(self, *, reduced: bool, again: bool = False) -> Exception | None:
        """Return why the step can't be committed: the script has not computed each of its slots in one backward.

        Args:
            reduced: whether anything was reduced in this step.
            again: whether a second pass over the same parameters has ended. It scales by the slots what the first one has
                averaged.
        """
        if self.trains_apart or self._context.step.deal is None:
            return None
        if self.dealt is None and reduced:
            return ConfigError(
                "a step was computed without step() of the ElasticLoader or sampler that deals its samples."
            )
        if again:
            return ConfigError(
                "two backward passes of one micro batch reach the same parameters: add the losses, call backward() once."
            )
        if self.dealt is None or self.next_slot is not None or not reduced:
            return StepError("the step is ended before the loop over step() has ended, or without the last backward().")
        return None

    def nodes(self) -> tuple[list[list[Node]], int]:
        """Return the nodes that each member of the quorum sums by itself, and the number of slots (reproducible steps)."""
        step, role = self._context.step, self._steps.role
        with self._context.failures.lock:
            deal, options = step.deal, step.data_options
        if deal is None or options is None or role is None:
            raise StepError("this step's data is not dealt.")
        if self._nodes is None or self._nodes[0] is not deal:  # each bucket of each step asks
            number = {member: i for i, member in enumerate(role.part.contributors)}
            self._nodes = deal, [nodes_of(deal.share(number.get(member))) for member in role.plan.replica_ids]
        return self._nodes[1], options.slots

    def cover_slots(self, slots: Ranges) -> None:
        """Let the commit of the current quorum cover these slots, which its members have trained apart."""
        role = self._steps.role
        assert role is not None, "its quorum has come"
        with self._context.failures.lock:
            self._context.step.deal = Deal((), (), slots, lanes=role.plan.replica_world_size)
