"""Check of the machine's requirements for a communication library."""

from __future__ import annotations

import torch
import torch.distributed as dist

from torchft_x.errors import ConfigError


def lacking(kind: str, who: str) -> None:
    """Raise `ConfigError` unless this machine can run ``"nccl"`` or ``"xccl"``. `who` is the class that needs it."""
    device, available = ("cuda", dist.is_nccl_available) if kind == "nccl" else ("xpu", dist.is_xccl_available)
    missing: list[str] = []
    if not available():
        missing.append(f"this PyTorch ({torch.__version__}) is built without {kind.upper()}")
    if not getattr(torch, device).is_available():
        missing.append(f"no {device.upper()} device is to be seen")
    if missing:
        raise ConfigError(f"{who} can't be used here: {' and '.join(missing)}; use ProcessGroupGloo.")
