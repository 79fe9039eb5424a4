"""Random runs until a budget of processor seconds is used up: a few here, a quarter of a minute in the full run, hours with scripts/soak.

A failing seed prints its invariant, the end of its trace, and the command that replays it.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from tests.sim import swarm


def spend(seconds: float, first_seed: int, *, kinds: Collection[str] = (), most: int = 0) -> swarm.Total:
    """Run seed after seed, and beyond `seconds` until all `kinds` have struck, in `most` runs; raises the first `Violation`."""
    total = swarm.Total()
    end = time.process_time() + seconds  # of the processor: what else the machine does is no matter
    seed = first_seed
    while time.process_time() < end or (total.runs < most and set(kinds) - set(total.faults)):
        total.merge(swarm.run(seed))
        seed += 1
    print(f"\n{total}")
    return total


def test_some_seconds_of_swarm() -> None:
    total = spend(2.5, first_seed=0)
    assert total.runs > 0
    assert total.commits > 100
