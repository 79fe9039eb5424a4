"""What a run did: the event log, and what people read from it. Never imports torch, grpc or the training side.

* `events`: the log itself: one JSON object per line, one file per process (docs/events.md).
* `console`: one process's events as sentences (`Story`), printed while a script of the user's own trains (`Narrator`).
* `telling`: what a group tells the lighthouse of itself.
* `report`: what a run's events say afterwards: the summary, and what each death cost.
* `worker_status`: where a worker is, as bytes that its supervisor reads from shared memory.
* `dumps`: what was collected about a death or a hang, as sentences, by means of `stacks` (where in its code a process
  stands) and `collectives` (who waits for whom, from PyTorch's Flight Recorder).
* `processes`: which processes of this host belong to a run.
"""

from torchft_x.observe.console import Story
from torchft_x.observe.events import EventLog, read_events, subscribe
from torchft_x.observe.report import summary

__all__ = ["EventLog", "Story", "read_events", "subscribe", "summary"]
