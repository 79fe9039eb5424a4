"""The shell of `core.training.sync_schedule`: hooks the inner optimizer and carries out each act of the schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torchft_x.core.training.sync_schedule import Act, Census, Settings, SyncSchedule
from torchft_x.durations import Seconds, seconds
from torchft_x.errors import ConfigError, TransferError
from torchft_x.timing import LONGEST_WAIT
from torchft_x.train.ddp.trainable import TrainableParameters
from torchft_x.train.local.dealt_data import DealtData
from torchft_x.train.local.exchange import Exchange, take_census
from torchft_x.train.optim import OptimizerWrapper

if TYPE_CHECKING:
    from torchft_x.train.local.fragments import Fragment
    from torchft_x.train.local.islands import Island
    from torchft_x.train.manager import Manager

BUCKET_BYTES = 25 << 20


class InnerLoop:
    """Inner loop of `DiLoCo`. Counts inner steps and runs the exchanges. Used by the training thread.

    Args:
        manager: this rank's Manager.
        optimizer: the inner optimizer, whose steps are counted.
        settings: the times of the exchanges.
        fragments: exchanged in turn.
        cap: largest bytes of a bucket; 0: one tensor in each.
        quantize: format in which values are sent, or False.
        weight: called before an exchange; returns the weight of this group's work in the average (0 or more, in the
            same unit in all groups). If None, all groups have the same weight.
        quorum_timeout: seconds of each quorum; an hour if None.
        followers: the island whose other ranks wait for this rank after each step.
        trainable: parameters of each fragment, checked before each step.
    """

    def __init__(
        self, manager: Manager, optimizer: Optimizer, settings: Settings, fragments: Sequence[Fragment], *,
        cap: int, quantize: bool | str, weight: Callable[[], float] | None, quorum_timeout: Seconds | None,
        followers: Island | None, trainable: Sequence[TrainableParameters],
    ) -> None:  # fmt: skip
        if isinstance(optimizer, OptimizerWrapper):
            raise ConfigError(
                "the inner optimizer is a torchft_x.Optimizer, whose every step is a commit of all groups; give the plain "
                "optimizer here."
            )
        self.schedule = SyncSchedule(settings)
        self._manager = manager
        self._optimizer = optimizer
        self._fragments = fragments
        self._cap = cap
        self._quantize = quantize
        self._weight = weight
        self._timeout = LONGEST_WAIT if quorum_timeout is None else seconds(quorum_timeout, "quorum_timeout")
        self._healed = False  # state was loaded, but `after_heal` was not called yet
        self._behind = False  # trained state was loaded, and nothing was committed since
        self._share = 0.0  # this group's weight in the current exchange
        self._census: Census | None = None  # current quorum's census
        self._exchange: Exchange | None = None  # the exchange that is being reduced
        self._followers = followers
        self._trainable = trainable
        self._hooks: list[RemovableHandle] = []
        self._begun = False  # whether `begin` has run since `enter`
        self._saved = False  # whether it has ever run
        self._data = DealtData(manager, settings.period, delay=settings.delay, begin=self.begin)
        manager.record_inner_step()
        manager.register_state_dict_fn("DiLoCo", self._load, lambda: {"exchanges": self.schedule.exchanges})

    def enter(self, *, later: bool = False) -> None:
        """Join the other groups, and return when this group can train.

        With `later` it joins at the first inner step, or when `begin` is called. Raises the errors of
        `Manager.start_quorum`.
        """
        self._begun = False
        self._hooks = [
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_step_post_hook(self._after_step),
        ]
        if not later:
            self.begin()

    def begin(self) -> None:
        """Join the other groups if `enter` has not done so. Only the first call has an effect."""
        if self._begun:
            return
        self._begun = True
        if not self._saved:  # weights loaded since construction become the global ones
            self._saved = True
            for fragment in self._fragments:
                fragment.save()
        try:
            self._data.start()
            self._go(self.schedule.enter())
        except BaseException:
            self.exit()
            raise

    def exit(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def now(self) -> None:
        """Exchange now instead of at the end of the period."""
        self._go(self.schedule.now())

    # --- hooks ------------------------------------------------------------------------------------------------------

    def _before_step(self, *_: Any) -> None:
        for parameters in self._trainable:
            parameters.check()
        self.begin()
        self._manager.disallow_state_dict_read()

    def _after_step(self, *_: Any) -> None:
        self._manager.allow_state_dict_read()
        self._manager.record_inner_step()
        self._go(self.schedule.stepped())

    # --- acts -------------------------------------------------------------------------------------------------------

    def _go(self, act: Act) -> None:
        try:
            if act is not Act.TRAIN:
                self._act(act)
                self._manager.copy_after_exchange()
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
                self._ended(committed)
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
        self._ended(committed)
        fragment = self._fragments[self.schedule.fragment]
        if committed and exchange.moved:
            fragment.apply(exchange.averages)
            if fragment.feedback is not None:
                fragment.feedback.commit()
        elif fragment.feedback is not None:
            fragment.feedback.drop()
        return self.schedule.finished(committed, moved=exchange.moved)

    def _ended(self, committed: bool) -> None:
        self._take_in_heal()
        self._behind = self._behind and not committed
        if committed:
            self._data.committed()

    def _new_exchange(self) -> Exchange:
        fragment = self._fragments[self.schedule.fragment]
        return Exchange(
            self._manager,
            fragment,
            self._share,
            lambda: self._count(waiting=True),
            cap=self._cap,
            quantize=self._quantize,
            changes=self.schedule.settings.delay > 0 and self.schedule.has_work,
        )

    def _count(self, *, waiting: bool) -> Census | None:
        return take_census(
            self._manager, weight=self._share, waiting=waiting, exchanges=self.schedule.exchanges,
            data=self._data, device=self._fragments[0].device,
        )  # fmt: skip

    def _own_weight(self) -> float:
        if not self.schedule.has_work:
            return 0.0
        return 1.0 if self._weight is None else float(self._weight())

    def _take_in_heal(self) -> None:
        healed, self._healed = self._healed, False
        if healed:
            self._behind = self._manager.context.step.state.step > 0
            self._data.healed()
            for fragment in self._fragments:
                fragment.after_heal()
                if fragment.feedback is not None:
                    fragment.feedback.clear()

    def _load(self, state: dict[str, int]) -> None:
        exchanges = state.get("exchanges") if isinstance(state, dict) else None
        if not isinstance(exchanges, int) or isinstance(exchanges, bool):
            raise TransferError("the source's state has no number of exchanges; run the same script in all groups.")
        self.schedule.healed(exchanges)
        self._healed = True


def bucket_bytes(use_bucketization: bool, cap_mb: float | None) -> int:
    """Return the size of a bucket in bytes; 0: one all-reduce per tensor. Raises `ConfigError` for a bad size."""
    if not use_bucketization:
        return 0
    if cap_mb is None:
        return BUCKET_BYTES
    if not (math.isfinite(cap_mb) and cap_mb > 0):
        raise ConfigError(f"bucket_cap_mb is {cap_mb}; it must be a positive number of MiB.")
    return max(1, int(cap_mb * (1 << 20)))
