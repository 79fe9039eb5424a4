"""The last line of a training: what was committed, restarted, dropped and lost."""

from __future__ import annotations

import os
from dataclasses import dataclass

from torchft_x.core.types import listed
from torchft_x.observe.console import Story, plural
from torchft_x.observe.run.fold import read_run


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Summary of a whole run."""

    steps: int
    restarts: int = 0
    dropped: int = 0  # a step counts once, however many groups dropped it
    lost: float = 0.0  # seconds without a commit because of losses, beyond usual steps
    undone: int = 0  # committed steps that were lost with all groups that held them
    incomplete: str = ""  # a clause that says why the other figures are unknown; '': they are known

    def __str__(self) -> str:
        if self.incomplete:
            return f"done: {plural(self.steps, 'step')} committed; restarts and drops are not known: {self.incomplete}"
        return (
            f"done: {plural(self.steps, 'step')} committed, {plural(self.restarts, 'restart')}, "
            f"{plural(self.dropped, 'step')} dropped, {self.lost:.2f} s lost"
            + (f"; {plural(self.undone, 'step')} lost with all groups that held them" if self.undone else "")
        )


def summary(story: Story, run_dir: str | os.PathLike[str] | None) -> Summary:
    """Summarise the whole run if its events are readable, else the part that this process has seen."""
    if run_dir is None:
        return Summary(steps=story.step, restarts=story.rejoins, dropped=story.dropped, lost=story.lost)
    run = read_run(run_dir)
    if run is None or run.incomplete or run.steps < story.step:
        log = f"the event log in {os.path.join(run_dir, 'events')}"
        log = listed(run.incomplete, 1) if run is not None and run.incomplete else log
        return Summary(
            steps=max(run.steps if run is not None else 0, story.step),
            incomplete=f"{log} could not be written to its end (disk full?)",
        )
    return Summary(
        steps=run.steps,
        restarts=sum(group.restarts for group in run.groups),
        dropped=run.dropped,
        lost=run.stood,
        undone=sum(x.steps for x in run.lineages),
    )
