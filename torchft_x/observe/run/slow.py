"""Find the groups that were slower than the others, and for which steps, by the rule of the live page."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from torchft_x.observe.run.reading import Log
from torchft_x.observe.run.values import Slow
from torchft_x.observe.view.slow_groups import STEPS, SlowGroups


def slow(logs: Sequence[Log]) -> list[Slow]:
    """Return the spans of steps for which a group was slow, in the order of their beginning."""
    known = [report for log in logs if log.role == "trainer" and not log.rank for report in _reports(log)]
    rule, own = SlowGroups(), dict[str, float]()
    found: list[Slow] = []
    now: dict[str, int] = {}  # group that is slow -> index of its newest span in `found`
    for _, group, step, seconds in sorted(known):
        own[group] = seconds
        named = rule.poll({name: seconds for name, seconds in own.items() if seconds})
        now = {name: at for name, at in now.items() if name in named}
        for name, part in named.items():
            if name not in now:
                now[name] = len(found)
                found.append(Slow(group=name, begin=max(0, step - STEPS + 1), end=step, slower=part))
            elif name == group:
                last = found[now[name]]
                found[now[name]] = Slow(group=name, begin=last.begin, end=step, slower=max(last.slower, part))
    return found


def _reports(log: Log) -> list[tuple[float, str, int, float]]:
    """Return time, group, newest step and the median seconds of its own part for each 50 steps of one process.

    The last one has 0 seconds: the process has ended.
    """
    commits, found = log.commits, []
    for end in range(STEPS, len(commits) + 1, STEPS):
        own = median(commits.own[end - STEPS : end])
        found.append((commits.t[end - 1] + log.shift, log.group, commits.step[end - 1], own))
    return [*found, (log.last + log.shift, log.group, 0, 0.0)]
