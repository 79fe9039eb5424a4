"""Decide when a group that can't copy the state of the others gives up.

A failed heal is tried again in the next quorum, from another source if there is one (`core.heal`). Meanwhile the others
are granted one step at a time and make a new process group for each. A group whose heals never succeed must not cost
them that for ever. Nor may it give up because one source died, so several heals must have failed, over some time.
"""

from __future__ import annotations

LEAST, MOST = 3, 8
"""Bounds on the failed heals in a row after which a group gives up. Between them it is the number of sources."""


class HealRetries:
    """Failed heals in a row of one rank. `patience`: least seconds from first to last. Times are monotonic seconds."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._first: float | None = None  # when the first heal of the present row failed; None: the last heal succeeded
        self._sources: list[str] = []  # sources of the heals in the row, in order

    def __repr__(self) -> str:
        return f"<HealRetries {len(self._sources)}>"

    def failed(self, source: str, sources: int, error: str, now: float) -> str:
        """Record a failed heal from `source`, one of `sources`. Return why the group gives up, or '' if it does not."""
        self._first = now if self._first is None else self._first
        self._sources.append(source)
        tries, seconds = len(self._sources), now - self._first
        if tries < min(max(LEAST, sources), MOST) or seconds < self._patience:
            return ""
        return (
            f"{tries} heals in a row have failed within {seconds:.0f} s, from {', '.join(dict.fromkeys(self._sources))}; the "
            f"last: {error.rstrip('.')}. This group ends, so that the others need not wait for it at each step. See whether "
            "its host reaches theirs by the addresses they advertise (`torchft_x doctor`), and whether all groups run the "
            "same script."
        )

    def over(self) -> None:
        """End the row of failures: a heal succeeded, or this rank needs none."""
        self._first = None
        self._sources.clear()
