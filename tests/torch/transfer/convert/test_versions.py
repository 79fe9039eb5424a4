from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.torch.versioned import Turned
from torchft_x.transfer.convert import formats


@pytest.mark.parametrize("form", ["dcp", "safetensors"])
def test_versions_of_modules_survive_the_conversion(tmp_path: Path, form: str) -> None:
    source, target = Turned(), Turned()
    counters = {"step": 3, "batches_committed": 6, "committed_in": 2}
    flat = formats.to_flat({"torchft": counters, "parts": {"m": source.state_dict()}})
    if form == "dcp":
        formats.write_dcp(flat, tmp_path / "new")
        back = formats.from_flat(formats.read_dcp(tmp_path / "new"), None)
        assert back["torchft"] == counters
    else:
        formats.write_safetensors(flat["m"], tmp_path / "new", 3)
        back = formats.from_flat({"m": formats.read_safetensors(tmp_path / "new")}, 3)
    target.load_state_dict(back["parts"]["m"])
    assert torch.equal(target.weight, source.weight)
