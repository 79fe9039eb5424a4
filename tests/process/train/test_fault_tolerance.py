"""The section [fault_tolerance]: what the mission's configurations say, and every mistake a sentence."""

from __future__ import annotations

import pytest
import torch

from torchft_x.errors import ConfigError
from torchft_x.train.fault_tolerance import PROCESS_GROUPS, FaultTolerance, make_process_group


@pytest.mark.parametrize("word", PROCESS_GROUPS)
def test_each_word_makes_its_group_or_says_what_is_missing(word: str) -> None:
    ft = FaultTolerance(process_group=word, process_group_timeout_ms=1500)
    here = word.endswith("gloo") or (torch.cuda.is_available() if "nccl" in word else torch.xpu.is_available())
    if here:
        group = make_process_group(ft)
        assert type(group).__name__ == PROCESS_GROUPS[word]
        group.shutdown()
    else:
        with pytest.raises(ConfigError, match=f"{PROCESS_GROUPS[word]} can't be used here: .*; use ProcessGroupGloo"):
            make_process_group(ft)
