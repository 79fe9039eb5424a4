"""Watches copies that others make of an offered state while training waits for them (`core.training.heal_limits`)."""

from __future__ import annotations

import threading
import time

from torchft_x.core.heal import QuorumPlan
from torchft_x.core.training.heal_limits import HealWait
from torchft_x.core.types import group_of, listed
from torchft_x.errors import CollectiveError
from torchft_x.train.context.context import RankContext

_LOOK = 0.1  # seconds between two checks


def look_after(context: RankContext, plan: QuorumPlan) -> None:
    """Start a thread that watches the copies until the next quorum, and fails the step if they don't progress.

    If the transport can't report progress, this does nothing, and the timeout applies.
    """
    if context.transport.progress() is None:
        return
    threading.Thread(target=_oversee, args=(context, plan), name="torchft_x-heal", daemon=True).start()


def _oversee(context: RankContext, plan: QuorumPlan) -> None:
    names = tuple(plan.replica_ids[rank] for rank in plan.dst_ranks)
    groups = [group_of(name) for name in names]
    given_up = context.failures.given_up
    healers = plan.replica_world_size - plan.max_world_size
    all_heals = len(names) == healers and context.options.group_world_size == 1
    copying = HealWait(time.monotonic(), max(given_up[g] for g in groups), all_heals=all_heals)
    until = time.monotonic() + context.options.timeout  # every wait for the healers has ended by then
    while context.step.quorum_id == plan.quorum_id and time.monotonic() < until:
        time.sleep(_LOOK)
        progress = context.transport.progress()
        if progress is None:
            return
        signs, done = progress
        still = copying.poll(
            time.monotonic(), signs=signs, done=done, lateness=context.waits.lateness,
            waits_since=context.waits.waits_since,
        )  # fmt: skip
        if still and context.step.quorum_id == plan.quorum_id:
            given_up.update(groups if done else ())
            who = listed(names)
            why = (
                f"{who} has the state and does not come for {still:.1f} s"
                if done
                else f"{who} copies the state, and nothing has moved for {still:.1f} s"
            )
            error = CollectiveError(f"{why}; the lighthouse is asked to go on with those who are there", names)
            context.failures.fail(error, plan.quorum_id)
            return
