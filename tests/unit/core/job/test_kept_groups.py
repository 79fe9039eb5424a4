"""What a keeper writes down for its lighthouse, and what is not believed of it."""

from __future__ import annotations

import pytest

from torchft_x.core.job.kept_groups import parse, render
from torchft_x.core.messages.job import GroupsChanged, SupervisorFinished
from torchft_x.errors import ConfigError


def test_there_and_back() -> None:
    event = GroupsChanged(("0", 'a"b\n'), (SupervisorFinished("0", 1, "why, é", 3),))
    assert parse(render(event)) == event


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"groups": ["0"]}',
        '{"groups": [], "ended": []}',
        '{"groups": "01", "ended": []}',
        '{"groups": [0], "ended": []}',
        '{"groups": ["0", "0"], "ended": []}',
        '{"groups": ["0"], "ended": [["0", 0, 1]]}',
        '{"groups": ["0"], "ended": [["0", -1, 1, "why"]]}',
        '{"groups": ["0"], "ended": [["0", 5000, 1, "why"]]}',
        '{"groups": ["0"], "ended": [["0", true, 1, "why"]]}',
        "[" * 100_000,
    ],
)
def test_what_is_no_list_of_groups(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text)
