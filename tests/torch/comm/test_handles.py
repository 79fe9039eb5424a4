from __future__ import annotations

import json

import pytest

from torchft_x.comm import ProcessGroupDummy, ReconfigureOptions
from torchft_x.errors import ConfigError


def test_a_handle_is_the_peers_text() -> None:
    group = ProcessGroupDummy()
    group.set_rank_info("a", 1, 2, 3)
    told = json.loads(group.get_reconfigure_handle())
    assert set(told) == {"id", "store", "global_rank"}
    assert told["global_rank"] == 3
    assert group.get_reconfigure_handle() == group.get_reconfigure_handle()


@pytest.mark.parametrize(
    "handle",
    [
        "", "[]", "x" * 5000, '{"id": 1, "store": "h:1"}', '{"id": "a"}', '{"id": "a", "store": "nowhere"}',
        '{"id": "a", "store": "h:1/other"}', '{"id": "a", "store": "h:1", "global_rank": "0"}',
    ],
)  # fmt: skip
def test_what_is_no_handle(handle: str) -> None:
    group = ProcessGroupDummy()
    with pytest.raises(ConfigError, match="is not a handle"):
        group.reconfigure(ReconfigureOptions(1, [group.get_reconfigure_handle(), handle]))


def test_our_own_handle_must_be_there_once() -> None:
    group = ProcessGroupDummy()
    mine, other = group.get_reconfigure_handle(), ProcessGroupDummy().get_reconfigure_handle()
    for handles in ([other], [mine, mine]):
        with pytest.raises(ConfigError, match="own handle is"):
            group.reconfigure(ReconfigureOptions(1, handles))
    for nothing in ([], {mine}):
        with pytest.raises(ConfigError, match="as a list"):
            group.reconfigure(ReconfigureOptions(1, nothing))  # type: ignore[arg-type]
