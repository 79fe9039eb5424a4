"""Process groups on accelerators: NCCL for CUDA, oneCCL (XCCL) for Intel's XPU.

Written against the interface of PyTorch 2.13, and not yet run on a GPU (tests/torch/comm/test_gpu.py does that). We
never ran XCCL. PyTorch treats ROCm's RCCL as NCCL; we haven't run that either.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Work

from torchft_x import env
from torchft_x.comm.accelerator.group import AcceleratorGroup
from torchft_x.comm.base import RankInfo

_log = logging.getLogger(__name__)

_NEVER = timedelta(days=1)  # torch's own timeout of a collective, which would end the process; the watch enforces ours


class ProcessGroupNCCL(AcceleratorGroup):
    """Process group on NCCL between replica groups, on CUDA tensors of the current device.

    Args:
        timeout: the longest time (seconds or timedelta) that one `configure` and one collective may take.

    Raises `ConfigError` if PyTorch has no NCCL or there is no GPU.
    """

    _kind = "nccl"
    _device = "cuda"

    def __init__(self, timeout: float | timedelta = 60.0) -> None:
        super().__init__(timeout)
        warning = env.prepare_nccl(self._timeout)
        if warning is not None:
            _log.warning(warning)

    def _backend(self, store: dist.Store, info: RankInfo, device: torch.device, names: dict[str, Any]) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        options.config.blocking = 0  # so that an abort finds no thread inside NCCL
        options._timeout = _NEVER
        options.group_name = names["group_name"]
        options.global_ranks_in_group = names["global_ranks"]
        backend = dist.ProcessGroupNCCL(store, info.rank, info.size, options)
        backend._set_sequence_number_for_group()
        backend.eager_connect_single_device(device)
        return backend

    def barrier(self, opts: Any = None) -> Work:
        """Synchronise on the current device; torch would guess a device from the rank."""
        opts = dist.BarrierOptions() if opts is None else opts
        if not opts.device_ids:
            opts.device_ids = [self._current_device().index]
        return super().barrier(opts)


class ProcessGroupXCCL(AcceleratorGroup):
    """Process group on oneCCL between replica groups, on XPU tensors of the current device.

    Never run by us: we have no XPU. Arguments and errors are those of `ProcessGroupNCCL`.
    """

    _kind = "xccl"
    _device = "xpu"
    _backend_type = "XCCL"

    def _backend(self, store: dist.Store, info: RankInfo, device: torch.device, names: dict[str, Any]) -> Any:
        options = dist.ProcessGroupXCCL.Options()
        options._timeout = _NEVER
        options.group_name = names["group_name"]
        options.global_ranks_in_group = names["global_ranks"]
        backend = dist.ProcessGroupXCCL(store, info.rank, info.size, options)
        backend._set_sequence_number_for_group()
        return backend
