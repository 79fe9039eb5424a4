"""Training of a model that is sharded within each replica group (FSDP2, tensor parallelism) over several groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from torchft_x.errors import ConfigError, StepError
from torchft_x.train.ddp.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, plan_buckets
from torchft_x.train.ddp.buffers import watch_buffers
from torchft_x.train.ddp.fingerprint import declare_model
from torchft_x.train.ddp.gradient_steps import steps_of
from torchft_x.train.ddp.reducer import Reducer
from torchft_x.train.ddp.shards import describe, is_dtensor, local
from torchft_x.train.ddp.trainable import TrainableParameters

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager


class HybridShardedDataParallel(nn.Module):
    """Averages the gradients of a sharded model over the participating replica groups during ``backward()``.

    Shard the model over the group's ranks as you like (``fully_shard`` per block and at the root, ``parallelize_module``,
    both), then wrap it::

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        model = HybridShardedDataParallel(manager, model)

    FSDP averages within the group as ever; what its ``backward()`` leaves on a rank is the gradient of that rank's
    shards, and rank r averages it with rank r of the other groups. All that `DistributedDataParallel` says holds here
    too: when ``backward()`` returns ``p.grad`` is final (clip it as usual), a lost group is neither an error nor a
    delay, and a reduction that broke is done again with the gradients that are kept. Parameters that are not sharded
    are averaged over the groups like the others; that they stay equal within the group is the script's care, as ever.

    Args:
        manager: this rank's Manager.
        module: with its shards on their final device. All groups shard alike.
        bucket_cap_mb: size of a bucket in MiB; equal in all groups.
    """

    def __init__(self, manager: Manager, module: nn.Module, *, bucket_cap_mb: float | None = None) -> None:
        super().__init__()
        cap = BUCKET_BYTES if bucket_cap_mb is None else max(1, int(bucket_cap_mb * (1 << 20)))
        self.module = module
        reshard(module)
        params = _sharded_params(module)
        shards = [local(p) for p in params]
        buckets = plan_buckets(shards, first_bytes=min(cap, FIRST_BUCKET_BYTES), bucket_bytes=cap)
        self._reducer = Reducer(steps_of(manager), params, buckets)
        self._trainable = TrainableParameters(module)
        self._buffers_known = False  # whether a training forward has shown which buffers it changes
        self._whole = False  # a no_sync() block has left gradients of whole parameters
        declare_model(manager, module, buckets)
        cut = [f"{name} {describe(p)}" for name, p in module.named_parameters() if is_dtensor(p)]
        manager.declare("sharding", f"{len(cut)} sharded tensors", cut)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            self._reducer.release()
            self._whole = self._whole and not self._reducer.synchronise
            if not torch.compiler.is_compiling():
                self._trainable.check()
                if not self._buffers_known:
                    self._buffers_known = True
                    with watch_buffers(self.module):
                        return self.module(*args, **kwargs)
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self, *, scatter: bool = False) -> Iterator[None]:
        """Backwards in this block only accumulate; the next one outside averages the sum.

        They send nothing at all, and so each rank keeps whole gradients until then. With `scatter` they are scattered
        within the group at once: each rank keeps its shards' gradients only, and only the traffic between groups is
        saved.
        """
        before = self._reducer.synchronise
        self._reducer.synchronise = False
        if not scatter:
            self._sync_within(False)
        try:
            yield
        finally:
            self._reducer.synchronise = before
            if before and not scatter:
                self._sync_within(True)
                self._whole = any(isinstance(m, FSDPModule) for m in self.module.modules())

    def reduce_gradients(self) -> None:
        """Average now what backwards in ``no_sync(scatter=True)`` have accumulated, for scripts whose last backward is
        somebody else's call (``torch.distributed.pipelining``). Once a step, in all groups.

        Raises `StepError` after a ``no_sync()`` that has left whole gradients: they are not a rank's own.
        """
        if self._whole:
            raise StepError(
                "reduce_gradients() after no_sync(): FSDP has not scattered these gradients within the group yet; use "
                "no_sync(scatter=True)."
            )
        self._reducer.reduce_now()

    def _sync_within(self, value: bool) -> None:
        for m in self.module.modules():
            if isinstance(m, FSDPModule):
                m.set_requires_gradient_sync(value, recurse=False)


def reshard(module: nn.Module) -> None:
    """Give back whole parameters that FSDP has gathered, so that the module holds its shards. Not inside a forward."""
    for m in module.modules():
        if isinstance(m, FSDPModule):
            m.reshard()


def _sharded_params(module: nn.Module) -> list[nn.Parameter]:
    """All that get gradients. Raises `ConfigError` where this is not what the class is for."""
    for name, p in module.named_parameters():
        if p.requires_grad and p.is_meta:
            raise ConfigError(
                f"parameter {name} is on the meta device: materialise the sharded model (to_empty, then initialise it) "
                "before HybridShardedDataParallel wraps it."
            )
    params = [p for p in _in_units(module) if p.requires_grad]
    if not any(is_dtensor(p) for p in params):
        raise ConfigError(
            "no parameter that needs a gradient is sharded: call fully_shard on the model first, or use "
            "DistributedDataParallel for whole copies."
        )
    return params


def _in_units(module: nn.Module) -> list[nn.Parameter]:
    """Its parameters, those of one FSDP module together, before those of the modules within it.

    That is about the order in which gradients come, backwards: what belongs to the root comes last of all, be it the head
    or the embedding. In the order of ``parameters()`` the head would hold up every bucket until the end of backward.
    """
    found: dict[nn.Parameter, None] = {}  # in order, each once

    def walk(m: nn.Module, *, within: bool) -> None:
        """`within`: the module's own parameters came with those of the FSDP module around it."""
        unit = _unit_of(m) if isinstance(m, FSDPModule) else [] if within else [m]
        for part in unit:
            found.update(dict.fromkeys(part.parameters(recurse=False)))
        for child in m.children():
            walk(child, within=within or isinstance(m, FSDPModule))

    walk(module, within=False)
    return list(found)


def _unit_of(m: nn.Module) -> list[nn.Module]:
    """The module, and all within it that are in no other FSDP module."""
    return [m, *(part for child in m.children() if not isinstance(child, FSDPModule) for part in _unit_of(child))]
