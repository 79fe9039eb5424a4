"""Data-parallel training over replica groups: wraps a module so that backward averages its gradients."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchft_x.errors import ConfigError
from torchft_x.train.ddp.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, plan_buckets
from torchft_x.train.ddp.buffers import watch_buffers
from torchft_x.train.ddp.fingerprint import declare_model
from torchft_x.train.ddp.gradient_steps import steps_of
from torchft_x.train.ddp.reducer import Reducer
from torchft_x.train.ddp.shards import local
from torchft_x.train.ddp.trainable import TrainableParameters
from torchft_x.transfer.format.flatten import is_dtensor

if TYPE_CHECKING:
    from torchft_x.train.manager import Manager

# Arguments of torch's DistributedDataParallel that have no effect here, and why.
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


class GradientAveraging(nn.Module):
    """The part that `DistributedDataParallel` and `HybridShardedDataParallel` have in common.

    `params`: those whose gradients are averaged. `bucket_cap_mb`: size of a bucket in MiB; None: 25.
    """

    def __init__(
        self, manager: Manager, module: nn.Module, params: Sequence[nn.Parameter], bucket_cap_mb: float | None
    ) -> None:
        super().__init__()
        cap = BUCKET_BYTES if bucket_cap_mb is None else max(1, int(bucket_cap_mb * (1 << 20)))
        buckets = plan_buckets(list(map(local, params)), first_bytes=min(cap, FIRST_BUCKET_BYTES), bucket_bytes=cap)
        declare_model(manager, module, buckets)
        self.module = module
        self._reducer = Reducer(steps_of(manager), params, buckets)
        self._trainable = TrainableParameters(module)
        self._buffers_known = False  # whether a training forward was watched for buffers it changes

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
        with watch_buffers(self.module, refuse=self._reducer.reproducible):
            return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients in this block without averaging. The next backward outside averages the sum."""
        before = self._reducer.synchronise
        self._reducer.synchronise = False
        try:
            yield
        finally:
            self._reducer.synchronise = before

    def reduce_gradients(self) -> None:
        """Average the gradients that backwards in `no_sync` have accumulated, as at the end of ``backward()``.

        It is for scripts that don't call the last backward themselves (``torch.distributed.pipelining``). Call it once
        a step, in all groups. Raises `StepError` inside backward.
        """
        self._reducer.reduce_now()


class DistributedDataParallel(GradientAveraging):
    """Averages the gradients of `module` over the participating replica groups during ``backward()``.

    When ``backward()`` returns, ``p.grad`` is the average (clip, unscale and inspect it as usual). If a reduction
    failed, it is the local gradient of a step that `Manager.should_commit` will drop. ``backward()`` itself neither
    raises for a lost group nor waits longer than the Manager's timeout. The result is bit-identical in all groups.

    It differs from torch's class in three points. Construction runs no collective. Buckets never change, and their
    layout is compared when groups join: a group whose model differs is refused with a sentence. Buffers (batch-norm
    statistics) are never broadcast: each group keeps its own, and a healed group gets its source's. A module that
    changes buffers in its first forward gets a warning (docs/write_a_script.md).

    Args:
        manager: this rank's Manager.
        module: module whose parameters are dense tensors on their final device.
        bucket_cap_mb: size of a bucket in MiB; must be equal in all groups.
        kwargs: torch's other arguments, which have no effect and cause a warning.

    Raises:
        ConfigError: a parameter is a DTensor, or none needs a gradient.
        TypeError: an unknown argument.
    """

    def __init__(
        self, manager: Manager, module: nn.Module, *, bucket_cap_mb: float | None = None, **kwargs: Any
    ) -> None:
        for name in kwargs:
            if name not in _WITHOUT_EFFECT:
                raise TypeError(f"DistributedDataParallel() got an unexpected keyword argument {name!r}")
            warnings.warn(f"DistributedDataParallel ignores {name}: {_WITHOUT_EFFECT[name]}.", stacklevel=2)
        super().__init__(manager, module, _whole_params(module), bucket_cap_mb)

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether the next backward averages. The name is torch's; `no_sync` sets it."""
        return self._reducer.synchronise

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, value: bool) -> None:
        self._reducer.synchronise = value

    def register_comm_hook(self, *args: Any, **kwargs: Any) -> None:
        raise ConfigError(
            "register_comm_hook is not supported: the averaging is fault tolerant by itself. "
            "Change gradients after backward(), or call manager.allreduce on your own tensors."
        )


class PureDistributedDataParallel(DistributedDataParallel):
    """`DistributedDataParallel` with one all-reduce per parameter. Slower; for comparing and debugging."""

    def __init__(self, manager: Manager, module: nn.Module) -> None:
        super().__init__(manager, module, bucket_cap_mb=0)


def _whole_params(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that get gradients. Raises `ConfigError` if one is a DTensor or there is none."""
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
    return params
