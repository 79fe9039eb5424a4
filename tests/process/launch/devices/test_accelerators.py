"""What a machine has, told from device files and a driver's tool that the tests make up."""

from __future__ import annotations

from pathlib import Path

from tests.unit.launch.devices.test_accelerators import (
    tool,  # noqa: F401
    touch,
)
from torchft_x.launch.devices.accelerators import find

PLAIN = """\
GPU 0: NVIDIA H200 (UUID: GPU-0aaaaaaa-1111-2222-3333-444444444444)
GPU 1: NVIDIA H200 (UUID: GPU-1aaaaaaa-1111-2222-3333-444444444444)
"""


def test_device_files_when_the_tool_fails(tool, tmp_path: Path) -> None:
    touch(tmp_path, "dev/nvidia4", "dev/nvidia5", "dev/nvidiactl", "dev/nvidia-uvm")
    for broken in (("couldn't communicate with the driver", 9), ("No devices found", 6)):
        tool(*broken)
        assert find(tmp_path).names == ("0", "1")  # CUDA counts what it sees in the container


def test_wsl(tool, tmp_path: Path) -> None:
    touch(tmp_path, "dev/dxg")
    machine = find(tmp_path)
    assert (machine.vendor, machine.names) == ("NVIDIA", None)
    tool(PLAIN)
    machine = find(tmp_path)
    assert (machine.vendor, machine.names) == ("NVIDIA", ("0", "1"))
    assert machine.source == "as nvidia-smi -L lists them"
