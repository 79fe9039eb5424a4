"""How long the others wait for a member that copies the state (R20).

They train in one quorum with it, so their step lasts until it has come along. What may take long in that is the copy, and of
that its source knows whether it moves. So a heal has no limit of its own but the timeout of all waits: it is waited for
while it moves. One that stands still for as long as a late group is waited for is given up: the step fails, the others ask
for the next quorum, and who does not ask is left out (`core.lighthouse.stragglers`).

When all has been sent nothing is seen of what follows: checking, `load_state_dict`, a step. That may take as long as the copy
did; unless others copy, too, from somebody else or on other ranks of the group, for whom those wait who are done: then only the
timeout counts. And because a group that needs more than that each time would never be back, each heal of it that is given up there
doubles what the next one gets; meanwhile the lighthouse keeps it out for longer and longer.
"""

from __future__ import annotations

_DOUBLED = 4  # times at most


class HealWait:
    """One offer of a state, at its source. Times in monotonic seconds.

    `given_up`: heals in a row of this group that were given up when all had been sent. `all_heals`: nobody else copies state
    in this quorum.
    """

    def __init__(self, now: float, given_up: int = 0, *, all_heals: bool = True) -> None:
        self._began = now
        self._all_heals = all_heals
        self._moved = now  # when something was seen to happen last
        self._signs = 0  # see `look`
        self._factor = 2.0 ** min(given_up, _DOUBLED)

    def __repr__(self) -> str:
        return f"<HealWait signs={self._signs} x{self._factor:g}>"

    def look(self, now: float, *, signs: int, done: bool, lateness: float, waits_since: float | None) -> float:
        """How long nothing has happened, in seconds, if that is too long; else 0.

        Args:
            signs: grows while the copy moves.
            done: all of it was sent.
            lateness: seconds for which this rank waits for a late group.
            waits_since: when it began to wait for the others; None: it does not.
        """
        if signs != self._signs:
            self._signs, self._moved = signs, now
        if waits_since is None or (done and not self._all_heals):
            return 0.0
        still = now - max(self._moved, waits_since)
        least = max(lateness, self._moved - self._began) * self._factor if done else lateness
        return still if still >= least else 0.0
