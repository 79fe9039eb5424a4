"""Replica groups of different sizes that train together: in each, rank 0 speaks with the others for all of its ranks.

Only rank 0 of an island has a Manager (of a group of one rank) and, on the CPU, the whole model with its outer optimizer.
The others follow it: after each inner step it tells them what to do, which is mostly to go on. To send, the shards
are put together on rank 0; what comes is spread over the ranks again. How an island cuts its model is nobody else's
business: shards may be of any number and uneven.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from types import TracebackType
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
from torchft_x.train.ddp.shards import is_dtensor, local
from torchft_x.train.local.error_feedback import ErrorFeedback
from torchft_x.train.local.fragments import Fragment


class _Word(IntEnum):
    """What rank 0 tells the others."""

    GO_ON = 0
    GATHER = 1
    SPREAD = 2
    FAILED = 3


class Island:
    """The ranks of one replica group, each holding a part of `model`::

        island = Island(model)
        if island.leads:
            manager = Manager(..., rank=0, world_size=1)
            outer = torch.optim.SGD(island.whole.parameters(), ...)
            loop = DiLoCo(manager, [island.whole], inner, outer, sync_every, island=island)
        else:
            loop = island.follow(inner)
        with loop: ...

    All ranks make it, and step their inner optimizers alike.

    Args:
        model: sharded over the ranks of `group` (FSDP2), or a whole copy in each.
        group: the island's process group; torch's default one if None. Its timeout must be longer than an exchange may wait
            for the other groups.
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
        self._device = local(next(iter(self._params.values()))).device  # a collective of the group takes tensors there
        self.whole: nn.Module | None = None
        """On rank 0: the parameters as they were before the model was cut, on the CPU. None elsewhere."""
        if self.leads:
            made = {
                name.replace(".", "/"): nn.Parameter(torch.empty(p.shape, dtype=p.dtype))
                for name, p in self._params.items()
            }
            self.whole = nn.ParameterDict(made)
        self._gather()

    def follow(self, inner: Optimizer) -> Follower:
        """For the ranks that don't lead."""
        return Follower(self, inner)

    # --- rank 0 -----------------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """The ranks' present weights into `whole`."""
        self._tell(_Word.GATHER)
        self._gather()

    def spread(self) -> None:
        """`whole` into the ranks' weights."""
        self._tell(_Word.SPREAD)
        self._spread()

    def go_on(self, exchanges: int, progress: int) -> None:
        self._tell(_Word.GO_ON, exchanges, progress)

    def fail(self) -> None:
        """So that nobody waits for rank 0, which has an error to raise."""
        self._tell(_Word.FAILED)

    # --- the others -------------------------------------------------------------------------------------------------

    def obey(self) -> tuple[int, int]:
        """Do what rank 0 says, until it says to go on. Returns (exchanges, progress). Raises `StepError` if it failed."""
        while True:
            word, exchanges, progress = self._hear()
            if word is _Word.GATHER:
                self._gather()
            elif word is _Word.SPREAD:
                self._spread()
            elif word is _Word.GO_ON:
                return exchanges, progress
            else:
                raise StepError("rank 0 of this group can't go on; its own message says why.")

    # --- inside -----------------------------------------------------------------------------------------------------

    def _tell(self, word: _Word, *numbers: int) -> None:
        row = torch.zeros(3, dtype=torch.int64)
        row[: 1 + len(numbers)] = torch.tensor([int(word), *numbers])
        dist.broadcast(row.to(self._device), group=self._group, group_src=0)

    def _hear(self) -> tuple[_Word, int, int]:
        row = torch.zeros(3, dtype=torch.int64, device=self._device)
        dist.broadcast(row, group=self._group, group_src=0)
        word, exchanges, progress = row.tolist()
        return _Word(word), exchanges, progress

    @torch.no_grad()
    def _gather(self) -> None:
        """Parameter by parameter, so that no rank holds more than one whole at a time beside its own."""
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


class Leading:
    """A fragment that is an island's whole model: what `InnerLoop` averages on rank 0."""

    def __init__(self, island: Island, fragment: Fragment) -> None:
        self._island = island
        self._fragment = fragment

    @property
    def device(self) -> torch.device:
        return self._fragment.device

    @property
    def feedback(self) -> ErrorFeedback | None:
        return self._fragment.feedback

    def tensors(self) -> Sequence[torch.Tensor]:
        return self._fragment.tensors()

    def fill(self, views: Sequence[torch.Tensor]) -> Iterator[None]:
        self._island.gather()
        yield from self._fragment.fill(views)

    def apply(self, averages: Sequence[torch.Tensor]) -> None:
        if self._fragment.alpha:
            self._island.gather()  # inner steps since it was sent
        self._fragment.apply(averages)
        self._island.spread()

    def after_heal(self) -> None:
        self._fragment.after_heal()
        self._island.spread()


class Follower:
    """The inner loop of a rank that doesn't lead. Used as `DiLoCo` is."""

    def __init__(self, island: Island, inner: Optimizer) -> None:
        self._island = island
        self._inner = inner
        self._hooks: list[RemovableHandle] = []
        self.exchanges = 0
        """Of all groups together, as rank 0 said last."""
        self.progress = 0
        """See `DiLoCo.progress`."""

    def __enter__(self) -> Follower:
        events = EventLog(
            env.read(env.RUN_DIR), "trainer", group=env.read(env.REPLICA_GROUP_ID),
            rank=self._island.rank, attempt=env.read_int(env.ATTEMPT, 0),
        )  # fmt: skip
        events.emit("joined", step=0)  # as a rank that has a Manager: who watches the job knows this process
        events.close()
        self._hooks = [self._inner.register_step_post_hook(self._after_step)]
        self._after_step()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _after_step(self, *_: Any) -> None:
        self.exchanges, self.progress = self._island.obey()
