"""Make the CPU the device of torchtitan's Trainer, in processes whose PYTHONPATH names this folder.

torchtitan 0.3.0 asks torch for an accelerator, and assumes "cuda" if there is none. Nothing of torchtitan is changed:
torch's answer is replaced before torchtitan is imported. torchtitan imports triton for kernels that the debug model
does not use, so that triton is a mock while that file is imported.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock


class _Cpu(ModuleType):
    """`torch.cpu` with the further functions of `torch.cuda` that torchtitan calls."""

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch.cpu, name)

    def current_device(self) -> int:
        return 0

    def get_device_name(self, device: object = None) -> str:
        return "CPU"

    def get_device_properties(self, device: object = None) -> SimpleNamespace:
        return SimpleNamespace(total_memory=2**30)

    def memory_stats(self, device: object = None) -> dict[str, int]:
        return {}

    def reset_peak_memory_stats(self, device: object = None) -> None: ...

    def empty_cache(self) -> None: ...


_triton = MagicMock()


class _Before(MetaPathFinder):
    """Import hook that acts before certain imports, and finds no module itself."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname == "torchtitan":
            import torch._utils as utils
            import torch.distributed as dist

            if not hasattr(dist, "set_timeout"):  # exists only in later versions of PyTorch
                dist.set_timeout = dist.distributed_c10d._set_pg_timeout
            cpu = _Cpu("torch.cpu")
            utils._get_available_device_type = lambda: "cpu"
            utils._get_device_module = lambda kind: cpu
        if fullname == "torchtitan.distributed.minimal_async_ep.kernels":
            sys.modules |= {"triton": _triton, "triton.language": _triton.language}
        elif sys.modules.get("triton") is _triton:
            # torch's compiler imports triton, too, and must not find the mock.
            del sys.modules["triton"], sys.modules["triton.language"]


sys.meta_path.insert(0, _Before())
