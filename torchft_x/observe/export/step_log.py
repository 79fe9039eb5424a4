"""Log of a training loop: lines about its steps on stdout, and the loss curve in the run's events."""

from __future__ import annotations

import queue
import time
from typing import Any

from torchft_x import env
from torchft_x.observe.console import Story
from torchft_x.observe.events import subscribe
from torchft_x.observe.run import summary


class StepLog:
    """Log of a training loop, written by rank 0 of the lowest group that takes part, for all groups.

    ::

        log = StepLog(manager, every=10, last=STEPS)
        ...
        if optimizer.committed:
            log.step(manager.current_step(), loss, tokens=x.numel())
        ...
        log.close()

    Deaths and returns of groups are not among its lines; the Manager prints them on stderr.

    Args:
        manager: this rank's Manager; None on a rank that has none, which logs nothing.
        every: steps between two lines.
        last: step that gets a line in any case.
    """

    def __init__(self, manager: Any, *, every: int = 10, last: int | None = None) -> None:
        self._manager = manager
        self._every, self._last = every, last
        group, _, rank = manager.name.rpartition("/") if manager is not None else ("", "", "")
        self._writes = rank == "0"
        self._story = Story(group)
        # Events come on any thread, and the story takes them from the training thread only.
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._unsubscribe = subscribe(self._events.put)
        self._tokens, self._since = 0, time.monotonic()  # tokens of all groups since the newest line, and its time
        self._participants = 0

    @property
    def participants(self) -> int:
        """Number of groups that contributed to the newest commit."""
        self._take_events()
        return self._participants

    def step(self, step: int, loss: Any, *, tokens: int, label: str = "") -> None:
        """Log a committed step.

        Args:
            step: number of committed steps, this one included.
            loss: a number or a tensor of one element. It is only read for a line.
            tokens: tokens that one group has trained on since the last call.
            label: text at the beginning of the line, in place of the step's number.
        """
        self._tokens += tokens * self.participants
        if step % self._every and step != self._last:
            return
        rate = self._tokens / (time.monotonic() - self._since)
        self._tokens, self._since = 0, time.monotonic()
        if self._manager is None or not (self._writes and self._story.speaks):
            return
        value = loss.item() if hasattr(loss, "item") else float(loss)
        head = label or f"step {step:>5}"
        print(f"{head} | loss {value:.4f} | groups {self._participants} | {rate:,.0f} tokens/s", flush=True)
        self._manager.log(loss=value)

    def close(self, *lines: str) -> None:
        """Print further lines and the summary of the training, and take no more events."""
        self._unsubscribe()
        if self._writes and self._story.speaks:
            print(*lines, summary(self._story, env.read(env.RUN_DIR)), sep="\n", flush=True)

    def _take_events(self) -> None:
        while not self._events.empty():
            event = self._events.get()
            if event["event"] == "commit":
                self._participants = event["participants"]
            self._story.sentences(event)
