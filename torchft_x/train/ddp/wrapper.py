"""Data parallel training over replica groups."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchft_x.errors import ConfigError
from torchft_x.train.ddp.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, plan_buckets
from torchft_x.train.ddp.buffers import watch_buffers
from torchft_x.train.ddp.fingerprint import declare_model
from torchft_x.train.ddp.gradient_steps import steps_of
from torchft_x.train.ddp.reducer import Reducer
from torchft_x.train.ddp.shards import is_dtensor
from torchft_x.train.ddp.trainable import TrainableParameters

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager

# Arguments of torch's DistributedDataParallel that have nothing to switch here.
_WITHOUT_EFFECT = {
    "find_unused_parameters": "unused parameters are always handled",
    "gradient_as_bucket_view": "gradients are always views of the buckets",
    "static_graph": "buckets never change anyway",
    "broadcast_buffers": "buffers are not broadcast; healing copies them",
    "init_sync": "the Manager's init_sync decides",
    "device_ids": "move the module to its device before wrapping it",
    "output_device": "move the module to its device before wrapping it",
    "process_group": "the Manager's process group is used",
}


class DistributedDataParallel(nn.Module):
    """Averages the gradients of `module` over the participating replica groups during ``backward()``.

    When ``backward()`` returns, ``p.grad`` is the average (clip, unscale and inspect it as usual), or, if a reduction
    failed, the local gradient of a step that `Manager.should_commit` will drop. ``backward()`` itself neither raises
    for a lost group nor waits longer than the Manager's timeout. The result is bit-identical in all groups.

    Unlike torch's class: building it runs no collective; buckets never change, and their layout is compared between the
    groups when they join (a group whose model differs is refused with a sentence); buffers (batch-norm statistics) are
    never broadcast: each group keeps its own and a healed group gets its source's. A module that changes them in its first
    forward gets a warning (docs/write_a_script.md).

    Args:
        manager: this rank's Manager.
        module: its parameters must be dense tensors on their final device.
        bucket_cap_mb: size of a bucket in MiB; must be equal in all groups.
        kwargs: torch's other arguments are accepted, with a warning where they have no effect.
    """

    def __init__(
        self, manager: Manager, module: nn.Module, *, bucket_cap_mb: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__()
        for name in kwargs:
            if name not in _WITHOUT_EFFECT:
                raise TypeError(f"DistributedDataParallel() got an unexpected keyword argument {name!r}")
            warnings.warn(f"DistributedDataParallel ignores {name}: {_WITHOUT_EFFECT[name]}.", stacklevel=2)
        cap = BUCKET_BYTES if bucket_cap_mb is None else max(1, int(bucket_cap_mb * (1 << 20)))
        self.module = module
        self._reducer = _make_reducer(manager, module, min(cap, FIRST_BUCKET_BYTES), cap)
        self._trainable = TrainableParameters(module)
        self._buffers_known = False  # whether a training forward has shown which buffers it changes

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.module(*args, **kwargs)
        self._reducer.release()
        if torch.compiler.is_compiling():
            return self.module(*args, **kwargs)
        self._trainable.check()
        if self._buffers_known:
            return self.module(*args, **kwargs)
        self._buffers_known = True
        with watch_buffers(self.module):
            return self.module(*args, **kwargs)

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether the next backward averages. Torch's name; `no_sync` sets it."""
        return self._reducer.synchronise

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, value: bool) -> None:
        self._reducer.synchronise = value

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards in this block only accumulate; the next one outside averages the sum."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def reduce_gradients(self) -> None:
        """Average now what backwards in `no_sync` have accumulated, for scripts whose last backward is somebody else's
        call (``torch.distributed.pipelining``). Once a step, in all groups; otherwise as the end of ``backward()``."""
        self._reducer.reduce_now()

    def register_comm_hook(self, *args: Any, **kwargs: Any) -> None:
        raise ConfigError(
            "register_comm_hook is not supported: the averaging is fault tolerant by itself. "
            "Change gradients after backward(), or call manager.allreduce on your own tensors."
        )


class PureDistributedDataParallel(DistributedDataParallel):
    """The same with one all-reduce per parameter and no buckets. Slower; for comparing and debugging."""

    def __init__(self, manager: Manager, module: nn.Module) -> None:
        super().__init__(manager, module, bucket_cap_mb=0)


def _make_reducer(manager: Manager, module: nn.Module, first_bytes: int, bucket_bytes: int) -> Reducer:
    params = []
    for name, p in module.named_parameters():
        if not p.requires_grad:
            continue
        if is_dtensor(p):
            raise ConfigError(
                f"parameter {name} is a DTensor: DistributedDataParallel needs whole tensors on every rank; "
                "torchft_x.HybridShardedDataParallel averages sharded ones."
            )
        params.append(p)
    if not params:
        raise ConfigError("the module has no parameter that needs a gradient; there is nothing to average.")
    reducer = Reducer(
        steps_of(manager), params, plan_buckets(params, first_bytes=first_bytes, bucket_bytes=bucket_bytes)
    )
    declare_model(manager, module, reducer.buckets)
    return reducer
