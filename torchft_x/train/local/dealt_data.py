"""The data of groups that train apart: each inner step takes a slot of the group's lane, each exchange commits slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from torchft_x.core.data.deal import lane_slots
from torchft_x.core.data.options import Policy, Tail
from torchft_x.errors import ConfigError, StepError
from torchft_x.train.step.step_data import DealtInnerStep

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager


class DealtData:
    """Count of the inner steps since the last exchange, and this group's lane in them. Used by the training thread.

    Without an `ElasticLoader` or `ElasticSampler` it does nothing.

    Args:
        manager: this rank's Manager.
        period: inner steps between two exchanges.
        delay: inner steps that an exchange may take in the background.
        begin: joins the other groups, if the group has not done so.
    """

    def __init__(self, manager: Manager, period: int, *, delay: int, begin: Callable[[], None]) -> None:
        self._manager = manager
        self._period = period
        self._delay = delay
        self._begin = begin
        self._steps = 0  # inner steps since the last commit; their samples are not committed
        self._lane: int | None = None  # this group's lane; None: the group was no member of the last commit's quorum
        self._next: int | None = None  # the lane after a commit of the quorum that has counted last
        self._used = False  # whether the script has made a sampler
        self._deals = "steps" in vars(manager)  # a stand-in for a Manager does not deal
        if self._deals:
            manager.steps.data.deal_inner_step = self._deal

    def start(self) -> None:
        """Use the sampler that the script has made, if any. Raises `ConfigError` if it does not suit."""
        if self._used or not self._deals:
            return
        step = self._manager.context.step
        options = step.data_options
        if options is None:
            return
        self._used = True
        if options.policy is not Policy.SHRINK or options.tail is Tail.SHORT:
            raise ConfigError(
                "groups that train apart have one slot for each inner step, so that there is no constant batch and no short "
                "step: give the ElasticLoader the policy 'shrink', and not the tail 'short'."
            )
        if self._delay or self._manager._use_async_quorum:
            why = "fragment_sync_delay" if self._delay else "use_async_quorum=True"
            raise ConfigError(f"an ElasticLoader does not work with {why}: choose the data by DiLoCo.progress.")
        with self._manager.context.failures.lock:
            step.data_options = replace(options, period=self._period)

    def row(self) -> list[float]:
        """Return this group's part of the sum from which all members know who has trained how much."""
        data = self._manager.context.step.data if self._used else None
        if data is None:
            return []
        row = [0.0] * data.lanes
        if self._lane is not None:
            row[self._lane] = float(self._steps)
        return row

    def counted(self, row: list[float]) -> None:
        """Take the sum over all members: the commit of this quorum covers these slots."""
        role = self._manager.steps.role if self._used else None
        if role is not None:
            self._next = role.plan.replica_rank
            self._manager.steps.data.cover_slots(lane_slots([int(n) for n in row], self._period))

    def committed(self) -> None:
        """Begin a new round, because an exchange was committed. The quorum in hand may be a later one (an adoption)."""
        if self._used:
            self._steps, self._lane = 0, self._next

    def healed(self) -> None:
        """Forget the inner steps that a heal has thrown away."""
        self._steps, self._lane = 0, None

    def _deal(self) -> DealtInnerStep:
        self._begin()
        step = self._manager.context.step
        if step.data is None or step.data_options is None or self._lane is None:
            raise StepError("an inner step is made before the group has joined the others.")
        self._steps += 1
        return DealtInnerStep(step.data, step.data_options, self._steps - 1, self._lane)
