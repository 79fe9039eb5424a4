"""Choose how soon a client without a session tries a lighthouse again. With several, it tries one after the other.

One lighthouse serves; the others answer that they don't, or are away (`core.lighthouse.lease`).
"""

from __future__ import annotations

from torchft_x.timing import TIMING


def pause(last: float | None, away: float) -> float:
    """Return the seconds until the next connect, before jitter.

    `last` is the pause before, None if a session has just ended; `away` is the time without a session. In seconds."""
    longest = TIMING.reconnect_near if away < TIMING.reconnect_near_for else TIMING.reconnect_last
    return TIMING.reconnect_first if last is None else min(2 * last, longest)
