"""How long processes may take that were told to end."""

from __future__ import annotations

import pytest

from torchft_x.launch.supervisor.requests import grace_is_over
from torchft_x.timing import TIMING


@pytest.mark.parametrize(
    ("waited", "notice", "saves", "over"),
    [
        (4.9, 10.0, False, False),
        (5.1, 10.0, False, True),
        (5.1, 10.0, True, False),
        (10.1 - TIMING.last_acts, 10.0, True, True),
        (27.9, 30.0, True, False),
        (28.1, 30.0, True, True),
        (5.1, 30.0, False, True),  # who doesn't save has no use for it
        (4.9, 3.0, True, False),  # never less than without
    ],
)
def test_who_saves_gets_what_the_sender_gives(waited: float, notice: float, saves: bool, over: bool) -> None:
    assert grace_is_over(waited, 5.0, notice, saves=saves) is over
