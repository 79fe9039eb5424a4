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
        (8.1, 10.0, True, True),
        (27.9, 30.0, True, False),
        (28.1, 30.0, True, True),
        (5.1, 30.0, False, True),  # who doesn't save has no use for it
        (4.9, 3.0, True, False),  # never less than without
    ],
)
def test_who_saves_gets_what_the_sender_gives(waited: float, notice: float, saves: bool, over: bool) -> None:
    """Times are counted in halves of a supervisor's last acts: seconds at scale 1."""
    unit = TIMING.last_acts / 2
    assert grace_is_over(unit * waited, unit * 5.0, unit * notice, saves=saves) is over
