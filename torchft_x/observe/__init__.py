"""The event log of a run, and reports for people. Never imports torch, grpc or the training side.

* `events`: the log itself: one JSON object per line, one file per process (docs/events.md).
* `console`: one process's events as sentences (`Story`), printed while a script of the user's own trains (`Narrator`).
* `facts_collector`: collects the facts that a group sends to the lighthouse.
* `worker_status`: a worker's status as bytes that its supervisor reads from shared memory.
* `dumps`: explains the files collected at a death or a hang, with `collectives` (which worker waits for which, from PyTorch's Flight Recorder).
* `template`: the HTML file `page.html`, which is the lighthouse's page and every report.
* `processes`: finds the processes of a run on this host. `run_dirs`: finds run directories.
"""

from torchft_x.observe.console import Story
from torchft_x.observe.events import EventLog, read_events, subscribe

__all__ = ["EventLog", "Story", "read_events", "subscribe"]
