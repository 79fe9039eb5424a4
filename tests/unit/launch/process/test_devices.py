"""Who gets which accelerator: values in, values out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchft_x.errors import ConfigError
from torchft_x.launch.process.devices import Machine, Usable, find_accelerators, from_smi, share_out, usable, visible

EIGHT = Machine("NVIDIA", tuple("01234567"), "as nvidia-smi -L lists them")
AMD = Machine("AMD", ("0", "1"), "by /sys/class/kfd")
CUT = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0aaaaaaa-1111-2222-3333-444444444444)
  MIG 3g.20gb     Device  0: (UUID: MIG-aaaaaaaa-1111-2222-3333-444444444444)
  MIG 3g.20gb     Device  1: (UUID: MIG-bbbbbbbb-1111-2222-3333-444444444444)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-1aaaaaaa-1111-2222-3333-444444444444)
"""


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("2,3", ("2", "3")),
        (" 3 , 1 ", ("3", "1")),
        ("0,-1,1", ("0",)),
        ("none", ()),
        ("7,8,1", ("7",)),  # there are eight
        ("GPU-8932f937,GPU-b1028956-cfa2", ("GPU-8932f937", "GPU-b1028956-cfa2")),
        ("MIG-GPU-8932f937-d72c-4106/1/2", ("MIG-GPU-8932f937-d72c-4106/1/2",)),
        ("MIG-5b1c2d3e,MIG-6b1c2d3e", ("MIG-5b1c2d3e", "MIG-6b1c2d3e")),
        ("GPU-8932f937,1", ("GPU-8932f937",)),  # a list is of one sort
        ("1,GPU-8932f937", ("1",)),
        ("0.0,0.1", ("0.0", "0.1")),  # Intel's tiles
    ],
)
def test_a_list_ends_as_in_cuda(value: str, names: tuple[str, ...]) -> None:
    assert visible(value, "X", there=8) == names


def test_a_device_named_twice_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"CUDA_VISIBLE_DEVICES='1,1' names 1 twice"):
        visible("1,1", "CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("machine", "environ", "variable", "names"),
    [
        (EIGHT, {}, "CUDA_VISIBLE_DEVICES", EIGHT.names),
        (EIGHT, {"CUDA_VISIBLE_DEVICES": "6,7"}, "CUDA_VISIBLE_DEVICES", ("6", "7")),
        (EIGHT, {"CUDA_VISIBLE_DEVICES": "6,9"}, "CUDA_VISIBLE_DEVICES", ("6",)),
        (EIGHT, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES", ()),
        (EIGHT, {"HIP_VISIBLE_DEVICES": "0", "ZE_AFFINITY_MASK": "0"}, "CUDA_VISIBLE_DEVICES", EIGHT.names),
        (Machine("NVIDIA", ("MIG-a", "MIG-b"), ""), {"CUDA_VISIBLE_DEVICES": "5"}, "CUDA_VISIBLE_DEVICES", ("5",)),
        (Machine("NVIDIA", None, "WSL"), {"CUDA_VISIBLE_DEVICES": "0"}, "CUDA_VISIBLE_DEVICES", ("0",)),
        (AMD, {}, "HIP_VISIBLE_DEVICES", ("0", "1")),
        (AMD, {"ROCR_VISIBLE_DEVICES": "GPU-1,GPU-2"}, "ROCR_VISIBLE_DEVICES", ("GPU-1", "GPU-2")),
        (AMD, {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"}, "HIP_VISIBLE_DEVICES", ("1",)),
        (AMD, {"CUDA_VISIBLE_DEVICES": "1"}, "CUDA_VISIBLE_DEVICES", ("1",)),
        (Machine("Intel", ("0",), ""), {"ZE_AFFINITY_MASK": "0.0,0.1"}, "ZE_AFFINITY_MASK", ("0.0", "0.1")),
    ],
)
def test_what_the_shell_may_use(machine: Machine, environ: dict, variable: str, names: tuple[str, ...]) -> None:
    found = usable(machine, environ)
    assert (found.variable, found.names) == (variable, names)


def test_gpus_that_cant_be_counted_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"can't be told \(WSL's /dev/dxg\); name those to use in CUDA_VISIBLE"):
        usable(Machine("NVIDIA", None, "WSL's /dev/dxg"), {})


def test_each_replica_gets_its_own() -> None:
    devices = usable(EIGHT, {"CUDA_VISIBLE_DEVICES": "7,5,3,1"})
    assert share_out(devices, role="trainer", replicas=2, each=2) == ["7,5", "3,1"]
    assert share_out(devices, role="evaluator", replicas=1, each=1, taken={"7", "5", "0"}) == ["3"]


@pytest.mark.parametrize(
    ("names", "taken", "sentence"),
    [
        ("0", (), "needs 4, but there is 1 (CUDA_VISIBLE_DEVICES='...' in this shell); ask for fewer"),
        (
            "01234",
            "01",
            "needs 4, but there are 5 (CUDA_VISIBLE_DEVICES='...' in this shell), of which other roles have 2;",
        ),
        ("", (), "--gpu 2: CUDA_VISIBLE_DEVICES='...' in this shell leaves the job no GPU of this machine; set it oth"),
    ],
)
def test_too_few_is_one_sentence(names: str, taken: str, sentence: str) -> None:
    devices = Usable("CUDA_VISIBLE_DEVICES", tuple(names), "CUDA_VISIBLE_DEVICES='...' in this shell")
    with pytest.raises(ConfigError, match=re.escape(sentence)) as caught:
        share_out(devices, role="trainer", replicas=2, each=2, taken=taken)
    assert "\n" not in str(caught.value)


@given(st.integers(1, 6), st.integers(1, 4), st.sets(st.integers(0, 40)), st.integers(0, 40))
def test_nobody_shares_a_device(replicas: int, each: int, taken: set[int], there: int) -> None:
    devices = Usable("V", tuple(str(k) for k in range(there)), "")
    used = {str(k) for k in taken}
    try:
        parts = share_out(devices, role="r", replicas=replicas, each=each, taken=used)
    except ConfigError:
        assert replicas * each > len(set(devices.names) - used)
        return
    given = [name for part in parts for name in part.split(",")]
    assert len(parts) == replicas
    assert {len(part.split(",")) for part in parts} == {each}
    assert len(set(given)) == len(given)
    assert set(given) <= set(devices.names) - used


@pytest.fixture(autouse=True)
def no_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an nvidia-smi on PATH, nor WSL's."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("torchft_x.launch.process.devices._WSL_TOOLS", str(tmp_path / "bin"))


def touch(root: Path, *files: str, text: str = "") -> Path:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_machine_without_any(tmp_path: Path) -> None:
    files = ("dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-caps/nvidia-cap1", "dev/kfd", "dev/dri/renderD128")
    assert find_accelerators(touch(tmp_path, *files)) is None


def test_a_gpu_in_parts() -> None:
    a, b = (f"MIG-{c * 8}-1111-2222-3333-444444444444" for c in "ab")
    assert from_smi(CUT) == (a, b, "GPU-1aaaaaaa-1111-2222-3333-444444444444")


def test_amd(tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    touch(tmp_path, f"{nodes}/0/properties", text="cpu_cores_count 64\nsimd_count 0\ndrm_render_minor 0\n")
    for k in (128, 129, 130):  # the last one isn't in this container
        touch(tmp_path, f"{nodes}/{k}/properties", text=f"simd_count 1216\ndrm_render_minor {k}\n")
    touch(tmp_path, "dev/dri/renderD128", "dev/dri/renderD129")
    machine = find_accelerators(tmp_path)
    assert (machine.vendor, machine.names) == ("AMD", ("0", "1"))


def test_intel(tmp_path: Path) -> None:
    for k, vendor in ((128, "0x8086"), (129, "0x10de"), (130, "0x8086")):
        touch(tmp_path, f"dev/dri/renderD{k}")
        touch(tmp_path, f"sys/class/drm/renderD{k}/device/vendor", text=f"{vendor}\n")
    touch(tmp_path, "dev/dri/renderD131")
    machine = find_accelerators(tmp_path)
    assert (machine.vendor, machine.names) == ("Intel", ("0", "1"))
