"""Replica groups of different sizes that train together: in each of them rank 0 exchanges for all ranks.

Only rank 0 of an island has a Manager (of a group of one rank) and, on the CPU, the whole model with its outer
optimizer. After each inner step rank 0 sends the followers a command, which is mostly to go on. Before an exchange the
shards are gathered on rank 0; after it the result is scattered to the ranks. Each island may shard its model as it
likes: shards may be of any number and uneven.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torchft_x import env
from torchft_x.errors import ConfigError, StepError
from torchft_x.observe.events import EventLog
from torchft_x.train.ddp.hsdp import reshard
from torchft_x.train.ddp.shards import local
from torchft_x.train.local.fragments import Fragment
from torchft_x.transfer.format.flatten import is_dtensor


class _Command(IntEnum):
    """Commands that rank 0 sends to the followers."""

    GO_ON = 0
    GATHER = 1
    SPREAD = 2
    FAILED = 3


class Island:
    """Ranks of one replica group, each of which holds a part of `model`. Gathers the model on rank 0 and scatters it.

    ::

        island = Island(model)
        if island.leads:
            manager = Manager(..., rank=0, world_size=1)
            outer = torch.optim.SGD(island.whole.parameters(), ...)
            loop = DiLoCo(manager, [island.whole], inner, outer, sync_every, island=island)
        else:
            loop = island.follow(inner)
        with loop: ...

    All ranks must make one, and step their inner optimizers alike.

    Args:
        model: model that is sharded over the ranks of `group` (FSDP2), or whole on each rank.
        group: the island's process group; torch's default one if None. Its timeout must be longer than an exchange may
            wait for the other groups.

    Raises `ConfigError` if there is no process group, or no parameter needs a gradient.
    """

    def __init__(self, model: nn.Module, group: Any = None) -> None:
        if not dist.is_initialized():
            raise ConfigError(
                "an Island needs the group's own process group: call torch.distributed.init_process_group."
            )
        reshard(model)
        self._model = model
        self._group = group
        self.rank = dist.get_rank(group)
        self.leads = self.rank == 0
        self._params = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self._params:
            raise ConfigError("the model has no parameter that needs a gradient; there is nothing to exchange.")
        self._device = local(next(iter(self._params.values()))).device  # device for collectives of the group
        self.whole: nn.Module | None = None
        """Whole parameters, on the CPU of rank 0; None on other ranks."""
        if self.leads:
            made = {
                name.replace(".", "/"): nn.Parameter(torch.empty(p.shape, dtype=p.dtype))
                for name, p in self._params.items()
            }
            self.whole = nn.ParameterDict(made)
        self._gather()

    def follow(self, inner: Optimizer) -> Follower:
        """Return the inner loop of a rank other than 0, which has no Manager."""
        return Follower(self, inner)

    # --- rank 0 -----------------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """Gather the ranks' current weights into `whole`."""
        self._send(_Command.GATHER)
        self._gather()

    def spread(self) -> None:
        """Scatter `whole` to the ranks' weights."""
        self._send(_Command.SPREAD)
        self._spread()

    def go_on(self, exchanges: int, progress: int) -> None:
        self._send(_Command.GO_ON, exchanges, progress)

    def fail(self) -> None:
        """Release the followers, which wait for rank 0, because rank 0 raises an error."""
        self._send(_Command.FAILED)

    # --- the others -------------------------------------------------------------------------------------------------

    def obey(self) -> tuple[int, int]:
        """Carry out rank 0's commands until it sends GO_ON. Return (exchanges, progress). Raises `StepError`."""
        while True:
            word, exchanges, progress = self._hear()
            if word is _Command.GATHER:
                self._gather()
            elif word is _Command.SPREAD:
                self._spread()
            elif word is _Command.GO_ON:
                return exchanges, progress
            else:
                raise StepError("rank 0 of this group can't go on; its own message says why.")

    # --- inside -----------------------------------------------------------------------------------------------------

    def _send(self, word: _Command, *numbers: int) -> None:
        row = torch.zeros(3, dtype=torch.int64)
        row[: 1 + len(numbers)] = torch.tensor([int(word), *numbers])
        dist.broadcast(row.to(self._device), group=self._group, group_src=0)

    def _hear(self) -> tuple[_Command, int, int]:
        row = torch.zeros(3, dtype=torch.int64, device=self._device)
        dist.broadcast(row, group=self._group, group_src=0)
        word, exchanges, progress = row.tolist()
        return _Command(word), exchanges, progress

    @torch.no_grad()
    def _gather(self) -> None:
        """Gather parameter by parameter, so that a rank holds only one whole parameter at a time beside its shards."""
        reshard(self._model)
        for name, p in self._params.items():
            q: Any = p
            full = q.full_tensor() if is_dtensor(p) else p.detach()
            if self.whole is not None:
                self._whole(name).copy_(full)

    @torch.no_grad()
    def _spread(self) -> None:
        reshard(self._model)
        for name, p in self._params.items():
            q: Any = p
            full = torch.empty(p.shape, dtype=p.dtype, device=self._device)
            if self.whole is not None:
                full.copy_(self._whole(name))
            if is_dtensor(p):
                from torch.distributed.tensor import distribute_tensor

                local(p).copy_(local(distribute_tensor(full, q.device_mesh, q.placements, src_data_rank=0)))
            else:
                dist.broadcast(full, group=self._group, group_src=0)
                p.copy_(full)

    def _whole(self, name: str) -> torch.Tensor:
        assert self.whole is not None
        found: torch.Tensor = self.whole[name.replace(".", "/")]
        return found


class Leading(Fragment):
    """Fragment on an island's rank 0 that holds the island's whole model."""

    def __init__(self, island: Island, *args: Any, **kwargs: Any) -> None:
        self._island = island
        super().__init__(*args, **kwargs)

    def fill(self, views: Sequence[torch.Tensor]) -> None:
        self._island.gather()
        super().fill(views)

    def apply(self, averages: Sequence[torch.Tensor]) -> None:
        if self.alpha:
            self._island.gather()  # to include inner steps since the send
        super().apply(averages)
        self._island.spread()

    def after_heal(self) -> None:
        super().after_heal()
        self._island.spread()


class Follower:
    """Inner loop of a rank other than 0 of an island. It is used like `DiLoCo`."""

    def __init__(self, island: Island, inner: Optimizer) -> None:
        self._island = island
        self._inner = inner
        self._hooks: list[RemovableHandle] = []
        self.exchanges = 0
        """Number of committed exchanges of all groups together, as rank 0 sent it last."""
        self.progress = 0
        """Number of inner steps (`DiLoCo.progress`)."""

    def __enter__(self) -> Follower:
        events = EventLog(
            env.read(env.RUN_DIR), "trainer", group=env.read(env.REPLICA_GROUP_ID),
            rank=self._island.rank, attempt=env.read_attempt().number,
        )  # fmt: skip
        events.emit("joined", step=0)  # ranks with a Manager emit the same, so that watchers know this process
        events.close()
        self._hooks = [self._inner.register_step_post_hook(self._after_step)]
        self._after_step()
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _after_step(self, *_: Any) -> None:
        self.exchanges, self.progress = self._island.obey()
