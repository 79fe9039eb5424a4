"""Check that an edit of the lighthouse changes no decision, by digests of runs before and after it.

Usage: ``python -m tests.sim.digest --seeds 300 > before``, edit, again, compare the lines.

For edits that may change the lighthouse's speed and nothing else. A line is the digest of all events that the
lighthouses of one run received, of their answers, and of the run's trace.
"""

from __future__ import annotations

import argparse
import sys
from hashlib import blake2b
from typing import Any
from unittest import mock

from tests.sim import swarm
from torchft_x.core.lighthouse.machine import Lighthouse


def digest(seed: int) -> str:
    """Return the digest of a run of the swarm, with all events and effects of its lighthouses."""
    found, original = blake2b(digest_size=16), Lighthouse.handle

    def handle(self: Lighthouse, event: Any, now: float) -> Any:
        effects = original(self, event, now)
        found.update(f"{now!r} {event!r} {effects!r} {self.undecided if effects else ''}\n".encode())
        return effects

    with mock.patch.object(Lighthouse, "handle", handle):
        try:
            world, total = swarm.play(seed, trace=None)
        except AssertionError as e:  # a violated invariant ends a run, and is part of its digest
            found.update(str(e).encode())
            return f"{found.hexdigest()} {type(e).__name__}"
    figures = repr((total.events, total.commits, total.quorums, sorted(total.figures.items())))
    found.update("".join([*world.trace.lines(), figures]).encode())
    return found.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=300, help="runs of the swarm")
    parser.add_argument("--standby", type=int, default=60, help="of these with a second lighthouse, now and then")
    parser.add_argument("--first", type=int, default=0, help="lowest seed")
    args = parser.parse_args()
    for i in range(args.first, args.first + args.seeds):
        swarm.STANDBY = 0.4 if i - args.first < args.standby else 0.0
        print("swarm", i, digest(i), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
