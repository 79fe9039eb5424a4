"""Data of one step of one rank's group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torchft_x.core.data.deal import Deal, lane_slot
from torchft_x.core.data.options import DataOptions
from torchft_x.core.data.ranges import members
from torchft_x.core.data.state import Position


@dataclass(frozen=True)
class Dealt:
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
class DealtApart:
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
