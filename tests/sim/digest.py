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
from torchft_x.core.lighthouse.machine import Lighthouse


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=300, help="runs of the swarm")
    parser.add_argument("--standby", type=int, default=60, help="of these with a second lighthouse, now and then")
    parser.add_argument("--first", type=int, default=0, help="lowest seed")
    args = parser.parse_args()
    for i in range(args.first, args.first + args.seeds):
        swarm.STANDBY = 0.4 if i - args.first < args.standby else 0.0
        print("swarm", i, digest(lambda i=i: small(i)), flush=True)  # type: ignore[misc]
    return 0


if __name__ == "__main__":
    sys.exit(main())
