"""LocalSGD (arXiv 1805.09767): groups train by themselves and average their weights periodically."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim import Optimizer

from torchft_x.durations import Seconds
from torchft_x.errors import ConfigError
from torchft_x.train.ddp.hsdp import reshard
from torchft_x.train.local.diloco import DiLoCo

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager


class LocalSGD(DiLoCo):
    """Averaging of the weights of all groups after every `sync_every` steps of the optimizer.

    ::

        with LocalSGD(manager, model, optimizer, sync_every=100):
            for batch in data:
                optimizer.zero_grad()
                loss(model, batch).backward()
                optimizer.step()  # every 100th comes back with the average

    Entering asks for the first quorum, so that a new group has the others' weights before its first step. If an
    exchange fails, the local weights stay, and the exchange is tried again after one more step. A group that heals has
    nothing to average and only receives.

    It is `DiLoCo` of one fragment, the model, with plain SGD of learning rate 1 as outer optimizer: the global weights
    minus the average of their differences to the local ones are the average of the local ones. So it keeps a copy of the
    model on the CPU. Parameters that need no gradient are averaged, too.

    Args:
        manager: this rank's Manager. Its state dict should hold the optimizer's state (and buffers); the weights heal
            without being in it.
        model: model that is whole on this rank, or sharded within the group (FSDP2) alike in all groups.
        optimizer: the plain optimizer, not `torchft_x.Optimizer`.
        sync_every: number of optimizer steps between two averages.
        weight: called before each exchange; returns this group's weight in the average, e.g. the tokens it has trained
            on. If None, all groups have the same weight.
        quorum_timeout: seconds that an exchange waits for the other groups to come to theirs; an hour if None.

    Raises `ConfigError` for a model that can't be averaged. ``optimizer.step()`` raises the errors of
    `Manager.start_quorum` and `Manager.should_commit`.
    """

    _words = "LocalSGD"
    _needs_synchronous_quorums = False
    _averages_frozen = True

    def __init__(
        self, manager: Manager, model: nn.Module, optimizer: Optimizer, sync_every: int, *,
        weight: Callable[[], float] | None = None, quorum_timeout: Seconds | None = None,
    ) -> None:  # fmt: skip
        reshard(model)  # else these would be the whole ones of a forward before
        params = list(model.parameters())
        if not params:
            raise ConfigError("the model has no parameters; there is nothing to average.")
        super().__init__(
            manager, [model], optimizer, torch.optim.SGD(params, lr=1.0), sync_every,
            use_bucketization=True, weight=weight, quorum_timeout=quorum_timeout,
        )  # fmt: skip

    def sync(self) -> None:
        """Average now, after waiting until the other groups come to their next exchange."""
        self._loop.now()
