"""The shell of `core.training.sync_schedule`: hooks on the inner optimizer, and what each act of the schedule means.

`LocalSGD` and `DiLoCo` are this loop with different parts: what is sent, and what is done with the average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torchft_x.core.training.sync_schedule import Act, Census, Settings, SyncSchedule
from torchft_x.durations import Seconds, seconds
from torchft_x.errors import ConfigError, TransferError
from torchft_x.train.ddp.trainable import TrainableParameters
from torchft_x.train.local.error_feedback import ErrorFeedback
from torchft_x.train.local.exchange import Exchange, take_census
from torchft_x.train.local.flat_buffers import Part
from torchft_x.train.optim import OptimizerWrapper

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager

QUORUM_TIMEOUT = 3600.0
"""Seconds. A group that begins waits until the others come to their next exchange, however long their inner steps take; a
group that died is not waited for, as ever."""
BUCKET_BYTES = 25 << 20


class FragmentPart(Part, Protocol):
    """What is averaged, and what becomes of the average."""

    @property
    def device(self) -> torch.device:
        """Where what is sent lies: the process group can reduce there."""

    @property
    def feedback(self) -> ErrorFeedback | None:
        """Of what quantising leaves out; None: none."""

    def apply(self, averages: Sequence[torch.Tensor]) -> None:
        """The exchange is committed."""

    def after_heal(self) -> None:
        """The state of another group was loaded."""


class Followers(Protocol):
    """Other ranks of the group, which have no Manager."""

    def go_on(self, exchanges: int, progress: int) -> None:
        """They may make their next inner step."""

    def fail(self) -> None:
        """This rank raises."""


class InnerLoop:
    """Made by `LocalSGD` and `DiLoCo`. Used by the training thread.

    Args:
        manager: this rank's.
        optimizer: the inner one; its steps are counted.
        settings: when what is exchanged.
        parts: one for each fragment.
        key: of the schedule's part in the state that heals.
        weight: called before an exchange: how much this group's work counts in the average (any positive unit, the same
            in all groups). None: all groups count the same.
        quorum_timeout: of each quorum; an hour if None.
        followers: other ranks of the group that wait for this one's word after each step.
        trainable: of each fragment, checked before each step.
    """

    def __init__(
        self, manager: Manager, optimizer: Optimizer, settings: Settings, parts: Sequence[FragmentPart], *,
        key: str, cap: int | None = BUCKET_BYTES, quantize: bool | str = False,
        weight: Callable[[], float] | None = None, quorum_timeout: Seconds | None = None,
        followers: Followers | None = None, trainable: Sequence[TrainableParameters] = (),
    ) -> None:  # fmt: skip
        if isinstance(optimizer, OptimizerWrapper):
            raise ConfigError(
                "the inner optimizer is a torchft_x.Optimizer, whose every step is a commit of all groups; give the plain "
                "optimizer here."
            )
        self.schedule = SyncSchedule(settings)
        self._manager = manager
        self._optimizer = optimizer
        self._parts = parts
        self._cap = cap
        self._quantize = quantize
        self._weight = weight  # see above
        self._timeout = QUORUM_TIMEOUT if quorum_timeout is None else seconds(quorum_timeout, "quorum_timeout")
        self._healed = False  # state was loaded, and the parts don't know yet
        self._behind = False  # what was loaded was trained already, and nothing was committed since
        self._share = 0.0  # this group's weight in the exchange in hand
        self._census: Census | None = None  # of the quorum in hand
        self._exchange: Exchange | None = None  # on the way
        self._followers = followers  # see above
        self._trainable = trainable
        self._hooks: list[RemovableHandle] = []
        self._begun = False  # since it was entered
        manager.note_inner_step()
        manager.register_state_dict_fn(key, self._load, lambda: {"exchanges": self.schedule.exchanges})

    def enter(self, *, later: bool = False) -> None:
        """Begin with the other groups; returns when this group can train. `later`: at the first inner step, or when `begin`
        is called. Raises as `Manager.start_quorum`."""
        self._begun = False
        self._hooks = [
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_step_post_hook(self._after_step),
        ]
        if not later:
            self.begin()

    def begin(self) -> None:
        """What `enter` has left for later; once."""
        if self._begun:
            return
        self._begun = True
        try:
            self._go(self.schedule.enter())
        except BaseException:
            self.exit(None, None, None)
            raise

    def exit(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def now(self) -> None:
        """Exchange now, not at the end of the period."""
        self._go(self.schedule.now())

    # --- hooks ------------------------------------------------------------------------------------------------------

    def _before_step(self, *_: Any) -> None:
        for parameters in self._trainable:
            parameters.check()
        self.begin()
        self._manager.disallow_state_dict_read()

    def _after_step(self, *_: Any) -> None:
        self._manager.allow_state_dict_read()
        self._manager.note_inner_step()
        self._go(self.schedule.stepped())

    # --- acts -------------------------------------------------------------------------------------------------------

    def _go(self, act: Act) -> None:
        try:
            if act is not Act.TRAIN:
                self._act(act)
                self._manager.note_exchange()
        except BaseException:
            if self._followers is not None:
                self._followers.fail()
            raise
        if self._followers is not None:
            self._followers.go_on(self.schedule.exchanges, self.schedule.progress)

    def _act(self, act: Act) -> None:
        while act is not Act.TRAIN:
            if act is Act.ASK:
                act = self._ask()
            elif act is Act.BEGIN:
                committed = bool(self._manager.should_commit())
                self._take_in_heal()
                self._behind = self._behind and not committed
                act = self.schedule.begun(committed)
            elif act is Act.SEND:
                self._exchange = self._new_exchange()
                self._exchange.send(self._census)
                act = self.schedule.sent()
                if act is Act.TRAIN:
                    self._exchange.drive()
            else:
                act = self._finish()

    def _ask(self) -> Act:
        self._manager.start_quorum(timeout=self._timeout)
        self._take_in_heal()
        self._share = self._own_weight()
        self._census = self._count(waiting=False)
        return self.schedule.counted(self._census, behind=self._behind)

    def _finish(self) -> Act:
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        committed = exchange.finish()
        self._take_in_heal()
        self._behind = self._behind and not committed
        part = self._parts[self.schedule.fragment]
        if committed and exchange.moved:
            part.apply(exchange.averages)
            if part.feedback is not None:
                part.feedback.commit()
        elif part.feedback is not None:
            part.feedback.drop()
        return self.schedule.finished(committed, moved=exchange.moved)

    def _new_exchange(self) -> Exchange:
        part = self._parts[self.schedule.fragment]
        return Exchange(
            self._manager,
            part,
            self._share,
            lambda: self._count(waiting=True),
            cap=self._cap,
            quantize=self._quantize,
            changes=self.schedule.settings.delay > 0 and self.schedule.has_work,
            feedback=part.feedback,
        )

    def _count(self, *, waiting: bool) -> Census | None:
        return take_census(
            self._manager, weight=self._share, waiting=waiting, exchanges=self.schedule.exchanges,
            device=self._parts[0].device,
        )  # fmt: skip

    def _own_weight(self) -> float:
        if not self.schedule.has_work:
            return 0.0
        return 1.0 if self._weight is None else float(self._weight())

    def _take_in_heal(self) -> None:
        healed, self._healed = self._healed, False
        if healed:
            self._behind = self._manager.context.step.state.step > 0
            for part in self._parts:
                part.after_heal()
                if part.feedback is not None:
                    part.feedback.clear()

    def _load(self, state: dict[str, int]) -> None:
        exchanges = state.get("exchanges") if isinstance(state, dict) else None
        if not isinstance(exchanges, int) or isinstance(exchanges, bool):
            raise TransferError("the source's state has no number of exchanges; run the same script in all groups.")
        self.schedule.healed(exchanges)
        self._healed = True


def bucket_bytes(use_bucketization: bool, cap_mb: float | None) -> int | None:
    """None: one all-reduce per tensor. Raises `ConfigError`."""
    if not use_bucketization:
        return None
    if cap_mb is None:
        return BUCKET_BYTES
    if not (math.isfinite(cap_mb) and cap_mb > 0):
        raise ConfigError(f"bucket_cap_mb is {cap_mb}; it must be a positive number of MiB.")
    return max(1, int(cap_mb * (1 << 20)))
