"""Is it still the same machine? ``python -m tests.sim.digest --seeds 300 > before``, edit, again, compare the lines.

For edits of the lighthouse that may change how fast it is and nothing else. A line is the digest of all that the
lighthouses of one run were told and what they answered, and of the run's trace.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

from tests.sim import swarm
from tests.sim.scale import simulate
from tests.sim.scale_world import Options
from torchft_x.core.lighthouse.machine import Lighthouse

_LARGE = (
    Options(groups=3, steps=120, deaths=1500, troubles=1500, restarts=40),
    Options(groups=40, steps=150, deaths=60, troubles=60, restarts=50),
    Options(groups=200, steps=60, deaths=20, troubles=30, restarts=25),
)


def digest(play: Callable[[], Iterator[str]]) -> str:
    """Of a run, with all that its lighthouses heard and said."""
    found, original = blake2b(digest_size=16), Lighthouse.handle

    def handle(self: Lighthouse, event: Any, now: float) -> Any:
        effects = original(self, event, now)
        found.update(f"{now!r} {event!r} {effects!r} {self.undecided if effects else ''}\n".encode())
        return effects

    setattr(Lighthouse, "handle", handle)  # noqa: B010
    try:
        for line in play():
            found.update(line.encode())
    except AssertionError as e:  # a broken rule is the end of a run like any other
        found.update(str(e).encode())
        return f"{found.hexdigest()} {type(e).__name__}"
    finally:
        setattr(Lighthouse, "handle", original)  # noqa: B010
    return found.hexdigest()


def small(seed: int) -> Iterator[str]:
    """A run of the swarm."""
    world, report = swarm.play(seed, trace=None)
    yield from world.trace.lines()
    yield repr((report.events, report.commits, report.quorums, sorted(report.figures.items())))


def large(options: Options) -> Iterator[str]:
    """A run with many groups."""
    world, _ = simulate(options)
    yield repr((world.now, world.events, sorted(world.count.items())))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=300, help="runs of the swarm")
    parser.add_argument("--standby", type=int, default=60, help="of these with a second lighthouse, now and then")
    parser.add_argument("--scale", type=int, default=5, help="seeds of each size of the large simulation")
    parser.add_argument("--first", type=int, default=0, help="lowest seed")
    args = parser.parse_args()
    for i in range(args.first, args.first + args.seeds):
        swarm.STANDBY = 0.4 if i - args.first < args.standby else 0.0
        print("swarm", i, digest(lambda i=i: small(i)), flush=True)  # type: ignore[misc]
    for seed in range(args.first, args.first + args.scale):
        for options in _LARGE:
            for grants in (False, True):
                o = Options(**{**vars(options), "seed": seed, "grants": grants})
                print("scale", o.groups, grants, seed, digest(lambda o=o: large(o)), flush=True)  # type: ignore[misc]
    return 0


if __name__ == "__main__":
    sys.exit(main())
