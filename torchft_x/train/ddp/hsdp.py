"""Trains a model that is sharded within each replica group (FSDP2, tensor parallelism) over several groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from torchft_x.errors import ConfigError, StepError
from torchft_x.train.ddp.shards import describe
from torchft_x.train.ddp.wrapper import GradientAveraging
from torchft_x.transfer.format.flatten import is_dtensor

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager


class HybridShardedDataParallel(GradientAveraging):
    """Averages the gradients of a sharded model over the participating replica groups during ``backward()``.

    Shard the model over the group's ranks as you like (``fully_shard`` per block and at the root, ``parallelize_module``,
    both), then wrap it::

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        model = HybridShardedDataParallel(manager, model)

    FSDP averages within the group as usual. Its ``backward()`` leaves the gradient of a rank's shards on that rank, and
    rank r averages it with rank r of the other groups. The guarantees of `DistributedDataParallel` hold here too. When
    ``backward()`` returns, ``p.grad`` is final (clip it as usual). A lost group is neither an error nor a delay, and a
    failed reduction is repeated with the gradients that are kept. Parameters that are not sharded are averaged over the
    groups like the others; the script must keep them equal within the group, as without this class.

    Args:
        manager: this rank's Manager.
        module: module with its shards on their final device. All groups must shard alike.
        bucket_cap_mb: size of a bucket in MiB; equal in all groups.

    Raises:
        ConfigError: a parameter is on the meta device, or no parameter that needs a gradient is sharded.
    """

    def __init__(self, manager: Manager, module: nn.Module, *, bucket_cap_mb: float | None = None) -> None:
        reshard(module)
        super().__init__(manager, module, _sharded_params(module), bucket_cap_mb)
        self._whole = False  # whether a no_sync() block has left gradients of whole parameters
        cut = [f"{name} {describe(p)}" for name, p in module.named_parameters() if is_dtensor(p)]
        manager.declare("sharding", f"{len(cut)} sharded tensors", cut)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            self._whole = self._whole and not self._reducer.synchronise
        return super().forward(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self, *, scatter: bool = False) -> Iterator[None]:
        """Accumulate gradients in this block without averaging. The next backward outside averages the sum.

        Backwards in the block send nothing, so each rank keeps whole gradients until then. With `scatter` they scatter
        gradients within the group at once: each rank keeps its shards' gradients only, and only the traffic between
        groups is saved.
        """
        before = self._reducer.synchronise
        if not scatter:
            self._sync_within(False)
        try:
            with super().no_sync():
                yield
        finally:
            if before and not scatter:
                self._sync_within(True)
                self._whole = any(isinstance(m, FSDPModule) for m in self.module.modules())

    def reduce_gradients(self) -> None:
        """Average the gradients that backwards in ``no_sync(scatter=True)`` have accumulated.

        It is for scripts that don't call the last backward themselves (``torch.distributed.pipelining``). Call it once
        a step, in all groups.

        Raises `StepError` after a ``no_sync()`` that left gradients of whole parameters, and inside backward.
        """
        if self._whole:
            raise StepError(
                "reduce_gradients() after no_sync(): FSDP has not scattered these gradients within the group yet; use "
                "no_sync(scatter=True)."
            )
        super().reduce_gradients()

    def _sync_within(self, value: bool) -> None:
        for m in self.module.modules():
            if isinstance(m, FSDPModule):
                m.set_requires_gradient_sync(value, recurse=False)


def reshard(module: nn.Module) -> None:
    """Free whole parameters that FSDP has gathered, so that the module holds its shards. Don't call it in a forward."""
    for m in module.modules():
        if isinstance(m, FSDPModule):
            m.reshard()


def _sharded_params(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that get gradients. Raises `ConfigError` if one is a meta tensor or none is sharded."""
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
    """Return the parameters, those of one FSDP module together and before those of the modules within it.

    Reversed, this is about the order in which gradients come: the root's gradients come last, those of the head as well
    as those of the embedding. In the order of ``parameters()`` the head would delay every bucket to the end of
    backward.
    """
    unit_of: dict[str, str] = {}  # by name of a module within an FSDP module: the nearest of these
    units: dict[str, list[nn.Parameter]] = {}
    for name, m in module.named_modules():
        parent = name.rpartition(".")[0]
        if isinstance(m, FSDPModule) or parent in unit_of:
            unit_of[name] = name if isinstance(m, FSDPModule) else unit_of[parent]
        units.setdefault(unit_of.get(name, name), []).extend(m.parameters(recurse=False))
    return list(dict.fromkeys(p for unit in units.values() for p in unit))
