"""The process groups that the section [fault_tolerance] may name."""

from __future__ import annotations

import pytest
import torch

from torchft_x.errors import ConfigError
from torchft_x.train.device import process_group_for
from torchft_x.train.fault_tolerance import PROCESS_GROUPS


@pytest.mark.parametrize("word", PROCESS_GROUPS)
def test_each_word_makes_its_group_or_says_what_is_missing(word: str) -> None:
    device = torch.device({"nccl": "cuda", "xccl": "xpu"}.get(word.removeprefix("baby-"), "cpu"))
    here = word.endswith("gloo") or (torch.cuda.is_available() if "nccl" in word else torch.xpu.is_available())
    if here:
        group = process_group_for(device, word, 1.5)
        assert type(group).__name__ == PROCESS_GROUPS[word]
        group.shutdown()
    else:
        with pytest.raises(ConfigError, match=f"{PROCESS_GROUPS[word]} can't be used here: .*; use ProcessGroupGloo"):
            process_group_for(device, word, 1.5)
