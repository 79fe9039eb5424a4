"""Chooses the device a rank trains on and the process group that fits it.

`choose_device` and `choose_process_group` only compute; `local_device` and `process_group_for` carry the choice out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchft_x import env
from torchft_x.core.types import group_number
from torchft_x.errors import ConfigError
from torchft_x.train import fault_tolerance

KINDS = ("cuda", "xpu")
"""Accelerators for which process groups exist; with any other one (mps) a rank trains on the CPU."""
_LIBRARIES = {"cuda": "nccl", "xpu": "xccl"}
PROCESS_GROUPS = ("auto", *fault_tolerance.PROCESS_GROUPS)


@dataclass(frozen=True, kw_only=True)
class LocalDevices:
    """Accelerators that a rank sees on its host. Computes which of them the rank takes."""

    kind: str | None
    """Kind of accelerator that PyTorch can use on this host; None if it can use none."""
    count: int
    """Number of accelerators that this process sees."""
    group: int
    """Number of the rank's replica group."""
    groups: int
    """Number of replica groups of the job; 0 if it is not known."""
    local_rank: int
    local_ranks: int
    """Number of ranks of the group on this host."""
    own: bool
    """Whether the launcher gave the group accelerators of its own on this host."""

    @property
    def index(self) -> int:
        """Index of the rank's device. Ranks that see the same devices get different ones if there are enough."""
        return (self.group * self.local_ranks + self.local_rank) % self.count

    @property
    def crowded(self) -> bool:
        """Whether ranks of this group share a device."""
        return self.local_ranks > self.count

    @property
    def shares(self) -> bool:
        """Whether another rank of the job may have the same device. NCCL and XCCL refuse two members on one device."""
        return self.crowded or (not self.own and max(self.groups, self.group + 1) * self.local_ranks > self.count)


def choose_device(asked: str, devices: LocalDevices) -> torch.device:
    """Return the device for `asked`: auto, cpu, cuda, xpu, or one with an index ("cuda:1").

    Raises `ConfigError` if this host has no such device.
    """
    try:
        device = None if asked == "auto" else torch.device(asked)
    except RuntimeError:
        device = torch.device("meta")
    kind = devices.kind if device is None else device.type
    if kind not in ("cpu", None, *KINDS):
        raise ConfigError(
            f"--device {asked!r} is none of auto, cpu, {', '.join(KINDS)}, or one of these with an index."
        )
    if kind in ("cpu", None):
        return torch.device("cpu")
    if devices.kind != kind or not devices.count:
        what = f"sees {devices.count} of kind {devices.kind}" if devices.kind else "sees no accelerator at all"
        raise ConfigError(
            f"--device {asked}: PyTorch {torch.__version__} {what} here; leave --device out to train on what is there."
        )
    index = devices.index if device is None or device.index is None else device.index
    if index >= devices.count:
        raise ConfigError(f"--device {asked}: there are {devices.count} here, counted from 0.")
    return torch.device(kind, index)


def choose_process_group(asked: str, device: torch.device, devices: LocalDevices) -> str:
    """Return the process group to use between the groups: gloo, nccl, xccl, or one of them in a child process (baby-gloo).

    Raises `ConfigError` if `asked` is unknown or doesn't take tensors on `device`.
    """
    if asked not in PROCESS_GROUPS:
        raise ConfigError(f"--process-group {asked!r} is none of {', '.join(PROCESS_GROUPS)}.")
    library = _LIBRARIES.get(device.type, "gloo")
    if asked == "auto":
        return "gloo" if devices.shares else library
    if asked.removeprefix("baby-") not in ("gloo", library):
        raise ConfigError(f"process group {asked} takes no tensors on {device.type}; choose another --device, or gloo.")
    return asked


def local_devices(environ: Mapping[str, str] | None = None) -> LocalDevices:
    """Return what this rank sees, from the environment that torchrun and the launcher set, and from PyTorch."""
    found = torch.accelerator.current_accelerator(check_available=True)
    kind = found.type if found is not None and found.type in KINDS else None
    ranks = env.read_int(env.LOCAL_WORLD_SIZE, 1, environ) or 1
    return LocalDevices(
        kind=kind,
        count=torch.accelerator.device_count() if kind else 0,
        group=group_number(env.read(env.REPLICA_GROUP_ID, "0", environ) or "0") or 0,
        groups=env.read_int(env.NUM_REPLICA_GROUPS, 0, environ) or 0,
        local_rank=env.read_int(env.LOCAL_RANK, 0, environ) or 0,
        local_ranks=ranks,
        own=env.read_attempt(environ).own_gpus,
    )


def local_device(asked: str = "auto") -> torch.device:
    """Return the device this rank trains on, after making it PyTorch's current device.

    ``auto`` takes a CUDA or XPU device if PyTorch sees one, else the CPU. Each local rank gets its own device, and so
    does each group where several see the same devices, as long as there are enough. Raises `ConfigError` if this host
    has no such device.
    """
    device = choose_device(asked, local_devices())
    if device.type != "cpu":
        torch.get_device_module(device.type).set_device(device)
    return device


def process_group_for(device: torch.device, asked: str = "auto", timeout: float = 60.0) -> Any:
    """Make a process group between the replica groups that takes tensors on `device`; `timeout` is in seconds.

    ``auto`` takes NCCL (XCCL) if every rank seems to have a device of its own, and gloo, through host memory, on the
    CPU and where ranks share a device. Raises `ConfigError` if `asked` is unknown or doesn't take tensors on `device`.
    """
    from torchft_x import comm

    name = choose_process_group(asked, device, local_devices())
    return getattr(comm, fault_tolerance.PROCESS_GROUPS[name])(timeout=timeout)


def in_group_backend(device: torch.device) -> str:
    """Return the backend for ``init_process_group`` among one group's ranks, for tensors on `device` and on the CPU."""
    if device.type == "cpu" or local_devices().crowded:
        return "gloo"
    return f"cpu:gloo,{device.type}:{_LIBRARIES[device.type]}"
