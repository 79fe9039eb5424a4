"""Decide when a heal is given up: one that stands still (R20), or a group's row of failed ones."""

from __future__ import annotations

_DOUBLED = 4  # the wait is doubled at most this many times
LEAST, MOST = 3, 8
"""Bounds on the failed heals in a row after which a group gives up. Between them it is the number of sources."""


class HealWait:
    """The wait for the healers of one offered state, at its source (decision 43). Times are in monotonic seconds.

    A copy that stands still for as long as a late group is waited for is given up. The source sees nothing after the last
    byte, and that part may take as long as the copy did, doubled with each heal of the group that was given up there. If
    others copy, too, from another source or on other ranks of the group, finished healers wait for those; then only the
    timeout counts.

    `given_up`: heals in a row of a healing group that were given up after all had been sent. `all_heals`: whether no
    other member or rank copies state in this quorum.
    """

    def __init__(self, now: float, given_up: int = 0, *, all_heals: bool = True) -> None:
        self._began = now
        self._all_heals = all_heals
        self._moved = now  # when the copy was last seen to move
        self._signs = 0  # newest `signs` given to `poll`
        self._factor = 2.0 ** min(given_up, _DOUBLED)

    def poll(self, now: float, *, signs: int, done: bool, lateness: float, waits_since: float | None) -> float:
        """Return the seconds for which the heal has stood still if that is too long, else 0.

        Args:
            now: monotonic seconds.
            signs: a number that grows while the copy moves.
            done: whether the whole state was sent.
            lateness: seconds for which this rank waits for a late group.
            waits_since: when this rank began to wait for other groups; None: it does not wait.
        """
        if signs != self._signs:
            self._signs, self._moved = signs, now
        if waits_since is None or (done and not self._all_heals):
            return 0.0
        still = now - max(self._moved, waits_since)
        least = max(lateness, self._moved - self._began) * self._factor if done else lateness
        return still if still >= least else 0.0


class HealRetries:
    """Failed heals in a row of one rank. `patience`: least seconds from first to last. Times are monotonic seconds.

    A failed heal is tried again in the next quorum, from another source if there is one (`core.heal`). Meanwhile the others
    are granted one step at a time and make a new process group for each. A group whose heals never succeed must not cost
    them that for ever. Nor may it give up because one source died, so several heals must have failed, over some time.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._first: float | None = None  # when the first heal of the present row failed; None: the last heal succeeded
        self._sources: list[str] = []  # sources of the heals in the row, in order

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
