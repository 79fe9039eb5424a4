"""A run as a value: what its event logs say when they are put together. Pure but for the reading of the files.

* `reading`: the files, line by line: commits into columns of numbers, the rest as short notes.
* `clocks`: what one clock has to do with another, from what both sides have seen.
* `course`: one course of steps out of what all ranks have written; how long steps take, and what was made of the time.
* `lives`: groups and their lives, quorums, and what each group did when.
* `losses`: who was lost and what that cost, phase by phase.
* `fold`: all of it (`read_run`).
* `collected`: the files, out of logs in which processes have printed their events.
* `values`: what comes out.
"""

from torchft_x.observe.run.fold import read_run
from torchft_x.observe.run.values import Run

__all__ = ["Run", "read_run"]
