"""When a group gives up that can't copy the state of the others.

A heal that fails is tried again in the next quorum, from another source if there is one (`core.heal`). Meanwhile the
others are granted one step at a time and make a new process group for each: one that never succeeds must not cost them
that for ever. Nor may it give up for a source that died, so the failures must be several and last for a while.
"""

from __future__ import annotations

LEAST, MOST = 3, 8
"""So many heals in a row must have failed, or as many as there are sources, if that is between the two."""


class HealRetries:
    """Of one rank. `patience`: seconds from the first failure of a row. Times in monotonic seconds."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._first: float | None = None  # when the first of the present row failed; None: the last heal was good
        self._sources: list[str] = []  # those that were asked in it, in turn

    def __repr__(self) -> str:
        return f"<HealRetries {len(self._sources)}>"

    def failed(self, source: str, sources: int, error: str, now: float) -> str:
        """A heal from `source`, one of `sources`, has failed: why the group gives up, or ''."""
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
        """A heal was good, or this rank needs none."""
        self._first = None
        self._sources.clear()
