"""What a machine has, told from device files and a driver's tool that the tests make up."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchft_x.launch.devices.accelerators import find, from_smi

CUT = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0aaaaaaa-1111-2222-3333-444444444444)
  MIG 3g.20gb     Device  0: (UUID: MIG-aaaaaaaa-1111-2222-3333-444444444444)
  MIG 3g.20gb     Device  1: (UUID: MIG-bbbbbbbb-1111-2222-3333-444444444444)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-1aaaaaaa-1111-2222-3333-444444444444)
"""


@pytest.fixture(autouse=True)
def no_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an nvidia-smi on PATH, nor WSL's."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("torchft_x.launch.devices.accelerators._WSL_TOOLS", str(tmp_path / "bin"))


def touch(root: Path, *files: str, text: str = "") -> Path:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_machine_without_any(tmp_path: Path) -> None:
    files = ("dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-caps/nvidia-cap1", "dev/kfd", "dev/dri/renderD128")
    assert find(touch(tmp_path, *files)) is None


def test_a_gpu_in_parts() -> None:
    a, b = (f"MIG-{c * 8}-1111-2222-3333-444444444444" for c in "ab")
    assert from_smi(CUT) == (a, b, "GPU-1aaaaaaa-1111-2222-3333-444444444444")


def test_amd(tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    touch(tmp_path, f"{nodes}/0/properties", text="cpu_cores_count 64\nsimd_count 0\ndrm_render_minor 0\n")
    for k in (128, 129, 130):  # the last one isn't in this container
        touch(tmp_path, f"{nodes}/{k}/properties", text=f"simd_count 1216\ndrm_render_minor {k}\n")
    touch(tmp_path, "dev/dri/renderD128", "dev/dri/renderD129")
    machine = find(tmp_path)
    assert (machine.vendor, machine.names) == ("AMD", ("0", "1"))


def test_intel(tmp_path: Path) -> None:
    for k, vendor in ((128, "0x8086"), (129, "0x10de"), (130, "0x8086")):
        touch(tmp_path, f"dev/dri/renderD{k}")
        touch(tmp_path, f"sys/class/drm/renderD{k}/device/vendor", text=f"{vendor}\n")
    touch(tmp_path, "dev/dri/renderD131")
    machine = find(tmp_path)
    assert (machine.vendor, machine.names) == ("Intel", ("0", "1"))
