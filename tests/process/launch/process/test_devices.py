"""What a machine has, told from device files and a driver's tool that the tests make up."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchft_x.launch.process.devices import find_accelerators

PLAIN = """\
GPU 0: NVIDIA H200 (UUID: GPU-0aaaaaaa-1111-2222-3333-444444444444)
GPU 1: NVIDIA H200 (UUID: GPU-1aaaaaaa-1111-2222-3333-444444444444)
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts an nvidia-smi on PATH that prints a text and ends with a code; before that there is none."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("torchft_x.launch.process.devices._WSL_TOOLS", str(folder))

    def make(text: str, code: int = 0) -> None:
        path = folder / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n[ \"$1\" = -L ] || exit 9\necho '{text}'\nexit {code}\n")
        path.chmod(0o755)

    return make


def test_device_files_when_the_tool_fails(tool, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidia4", "nvidia5", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    for broken in (("couldn't communicate with the driver", 9), ("No devices found", 6)):
        tool(*broken)
        assert find_accelerators(tmp_path).names == ("0", "1")  # CUDA counts what it sees in the container


def test_wsl(tool, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    machine = find_accelerators(tmp_path)
    assert (machine.vendor, machine.names) == ("NVIDIA", None)
    tool(PLAIN)
    machine = find_accelerators(tmp_path)
    assert (machine.vendor, machine.names) == ("NVIDIA", ("0", "1"))
    assert machine.source == "as nvidia-smi -L lists them"
