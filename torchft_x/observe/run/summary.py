"""The last line of a training: what was committed, restarted, dropped and lost."""

from __future__ import annotations

import os

from torchft_x.core.types import listed
from torchft_x.observe.console import Story, plural
from torchft_x.observe.run.fold import read_run


def summary(story: Story, run_dir: str | os.PathLike[str] | None) -> str:
    """Summarise the whole run if its events are readable, else the part that this process has seen.

    A step counts once, however many groups dropped it. The seconds lost are those without a commit because of losses,
    beyond usual steps.
    """
    steps, restarts, dropped, lost, undone = story.step, story.rejoins, story.dropped, story.lost, 0
    if run_dir is not None:
        run = read_run(run_dir)
        if run is None or run.incomplete or run.steps < steps:
            log = f"the event log in {os.path.join(run_dir, 'events')}"
            log = listed(run.incomplete, 1) if run is not None and run.incomplete else log
            steps = max(run.steps if run is not None else 0, steps)
            why = f"{log} could not be written to its end (disk full?)"
            return f"done: {plural(steps, 'step')} committed; restarts and drops are not known: {why}"
        steps, dropped, lost = run.steps, run.dropped, run.stood
        restarts, undone = sum(g.restarts for g in run.groups), sum(x.steps for x in run.lineages)
    return (
        f"done: {plural(steps, 'step')} committed, {plural(restarts, 'restart')}, {plural(dropped, 'step')} dropped, "
        f"{lost:.2f} s lost" + (f"; {plural(undone, 'step')} lost with all groups that held them" if undone else "")
    )
