"""Devices that torch counts in a process of its own: a made-up module stands for torch."""

from __future__ import annotations

from pathlib import Path

from torchft_x.launch.process.devices import ask_torch, usable

TORCH = """import os
import types
print("a library greets")
names = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3").split(",")
accelerator = types.SimpleNamespace(
    is_available=lambda: True, device_count=lambda: len(names), current_accelerator=lambda: types.SimpleNamespace(type="cuda")
)
version = types.SimpleNamespace(hip=None)
__version__ = "2.11.0"
"""


def make_torch(folder: Path) -> None:
    """Make a package torch in `folder` that sees four NVIDIA GPUs, or those of CUDA_VISIBLE_DEVICES."""
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text(TORCH)
    (folder / "torch/distributed.py").write_text("is_nccl_available = lambda: True")


def test_the_environment_limits_the_devices(tmp_path: Path) -> None:
    make_torch(tmp_path)
    environ = {"PYTHONPATH": str(tmp_path)}
    assert ask_torch(environ) == ("2.11.0", 4, "NVIDIA", "nccl")
    assert usable({**environ, "CUDA_VISIBLE_DEVICES": "3,1"}).names == ("3", "1")


def test_the_real_torch_of_the_tests_has_none() -> None:
    torch = ask_torch({"CUDA_VISIBLE_DEVICES": ""})
    assert (torch.devices, torch.vendor) == (0, "none")
    assert "gloo" in torch.backends
