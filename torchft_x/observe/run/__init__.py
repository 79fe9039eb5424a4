"""A run as a value, combined from its event logs. Pure except for the reading of the files.

* `reading`: reads the files line by line: commits into columns of numbers, other events into short notes.
* `course`: combines all ranks' commits into one course of steps; step times and goodput.
* `attempts`: groups and their attempts, quorums, and the activities of each group over time.
* `losses`: lost members and the cost of each loss, phase by phase.
* `fold`: combines all of this (`read_run`), and finds groups that were slower than the others.
* `collected`: restores the files from logs in which processes have printed their events.
* `values`: the result's classes. `summary`: a run in one line, for the end of a training.
"""

from torchft_x.observe.run.fold import read_run
from torchft_x.observe.run.summary import summary
from torchft_x.observe.run.values import Run

__all__ = ["Run", "read_run", "summary"]
