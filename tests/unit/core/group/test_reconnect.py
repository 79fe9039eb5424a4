"""How soon a client tries a lighthouse again."""

from __future__ import annotations

from torchft_x.core.group.reconnect import pause
from torchft_x.timing import TIMING


def test_pauses_double_and_are_short_in_the_first_seconds() -> None:
    taken, away, last = [], 0.0, None
    while away < TIMING.reconnect_near_for + 3.0:
        last = pause(last, away)
        taken.append((away, last))
        away += last
    pauses = [seconds for _, seconds in taken]
    assert (pauses[0], pauses[1]) == (TIMING.reconnect_first, 2 * TIMING.reconnect_first)
    assert all(seconds <= TIMING.reconnect_near for at, seconds in taken if at < TIMING.reconnect_near_for)
    assert pauses[-1] == TIMING.reconnect_last
    assert pause(None, 100.0) == TIMING.reconnect_first  # a session stood until now
