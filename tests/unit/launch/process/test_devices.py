"""Who gets which accelerator: values in, values out."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchft_x.errors import ConfigError
from torchft_x.launch.process import devices
from torchft_x.launch.process.devices import Torch, Usable, share_out, usable


@pytest.mark.parametrize(
    ("vendor", "count", "environ", "variable", "names"),
    [
        ("NVIDIA", 8, {}, "CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7"),
        ("NVIDIA", 2, {"CUDA_VISIBLE_DEVICES": " 7 , 5 "}, "CUDA_VISIBLE_DEVICES", "7,5"),
        ("NVIDIA", 1, {"CUDA_VISIBLE_DEVICES": "6,-1,2"}, "CUDA_VISIBLE_DEVICES", "6"),
        ("NVIDIA", 0, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES", ""),
        ("NVIDIA", 1, {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, "CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b"),
        ("AMD", 2, {}, "HIP_VISIBLE_DEVICES", "0,1"),
        ("AMD", 2, {"ROCR_VISIBLE_DEVICES": "GPU-1,GPU-2"}, "ROCR_VISIBLE_DEVICES", "GPU-1,GPU-2"),
        ("AMD", 1, {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"}, "HIP_VISIBLE_DEVICES", "1"),
        ("AMD", 1, {"CUDA_VISIBLE_DEVICES": "1"}, "CUDA_VISIBLE_DEVICES", "1"),
        ("Intel", 2, {"ZE_AFFINITY_MASK": "0.0,0.1"}, "ZE_AFFINITY_MASK", "0.0,0.1"),
        ("none", 0, {}, "CUDA_VISIBLE_DEVICES", ""),
        ("none", 1, {}, "CUDA_VISIBLE_DEVICES", ""),  # an accelerator without a variable that we know
    ],
)
def test_which_devices_the_shell_may_use(
    vendor: str, count: int, environ: dict, variable: str, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "ask_torch", lambda environ: Torch("2.13.0", count, vendor, "gloo"))
    found = usable(environ)
    assert (found.variable, ",".join(found.names)) == (variable, names)


def test_each_replica_gets_its_own() -> None:
    devices = Usable("CUDA_VISIBLE_DEVICES", ("7", "5", "3", "1"), "")
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
        (
            "",
            (),
            "--gpu 2: this machine has no GPU for the job (CUDA_VISIBLE_DEVICES='...' in this shell); leave --gpu out",
        ),
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
