"""This rank's status in shared memory, which the supervisor can read (observe/worker_status.py) without Python's lock.

The memory is anonymous (memfd): no write waits for a disk, and nothing stays when the process is killed. The link
``<rank>.status`` in the attempt's private folder leads to it.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from torchft_x.core.commit.step import Step, StepPhase
from torchft_x.observe import worker_status
from torchft_x.observe.worker_status import MOMENT, Moment
from torchft_x.train.introspection.query_server import lead
from torchft_x.train.setup.options import Options

_NUMBERS = {phase: worker_status.PHASES.index(phase.value) for phase in StepPhase}
_pack = MOMENT.pack_into
_STEP_ENDS = ("joined", "rehearsal", "commit", "drop")
_KEPT = 8  # number of the group's newest decisions that are kept


class Board:
    """Shared memory of one process. Any thread may write, because each record is one store under Python's lock."""

    def __init__(self, path: str) -> None:
        """Create the memory and link `path` to it. Raises OSError."""
        self._fd = os.memfd_create("torchft_x-status", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, worker_status.SIZE)
        self._memory = mmap.mmap(self._fd, worker_status.SIZE)
        whole = memoryview(self._memory)
        self._moments = [whole[worker_status.place_of_moment(n) :][: MOMENT.size] for n in (0, 1)]
        self._whole = whole
        self._numbers = itertools.count(1)  # number the moments; `next` is atomic
        lead(path, self._fd)

    def write(self, *moment: Any) -> None:
        """Write a moment, given the fields of a `Moment`."""
        number = next(self._numbers)
        _pack(self._moments[number & 1], 0, number, *moment, number)

    def write_story(self, number: int, values: dict[str, Any]) -> None:
        at, data = worker_status.encode_story(number, values)
        self._whole[at : at + len(data)] = data


class SharedStatus:
    """Status of one Manager. Its methods may be called on any thread, and don't block."""

    def __init__(
        self, options: Options, step: Step, replica_id: str, group_story: Callable[[], list[str]] = list
    ) -> None:
        self._options = options
        self._step = step  # read only
        self._replica_id = replica_id
        self._group_story = group_story  # returns the group's latest decisions, if this rank knows them
        self._board: Board | None = None  # None if no supervisor reads
        self._lock = threading.Lock()  # guards writes of the story
        self._stories = 0  # number of the newest story
        self._since = time.monotonic()  # monotonic seconds when the current step began, at the end of the one before
        self._longest = 0.0  # seconds of the longest committed step, or of the longest time between two
        self._commits = 0  # number of steps committed in this attempt
        self._quorum: dict[str, Any] = {}  # the newest `quorum` event
        self._configured: dict[str, Any] = {}  # the newest `configure` event
        self._error: str | None = None  # newest reason of an `error`, `abort` or `drop` event
        self._pause_ends = 0.0  # monotonic seconds when the announced pause ends; 0 without one
        self._leaving = False
        self._waits = False  # whether this rank waits for other groups
        self._apart = False  # whether this group trains apart, so that its inner steps are its progress
        self.thread_id = 0  # kernel id of the thread that answers (query_server.py); 0 if there is none

    def show(self, board: Board | None) -> None:
        """Write to `board` from now on; None stops writing."""
        self._board = board
        self._publish_story()
        self.publish()

    def publish(self, *, story: bool = False) -> None:
        """Write the step's status, after each change; with `story` also the group's decisions.

        It takes half a microsecond, three or four times a step.
        """
        if story:
            self._publish_story()
        if self._board is not None:
            self._board.write(*self._moment())

    def _moment(self) -> tuple[int, int, float, float, float, int, int, int, bool, bool]:
        step = self._step
        return (
            step.state.step, _NUMBERS[step.phase], self._since, self._longest, self._pause_ends, self._commits,
            step.quorum_id, step.size, self._leaving, self._waits,
        )  # fmt: skip

    def waits(self, waits: bool) -> None:
        """Record that a wait for other groups begins (True) or has ended (False)."""
        self._waits = waits
        self.publish()

    def begin_step(self, *, story: bool) -> None:
        """Count the time since the last step (an evaluation) as a usual length, as the next one begins, and publish."""
        if self._commits:
            self._longest = max(self._longest, time.monotonic() - self._since)
        self.publish(story=story)

    def trained(self) -> None:
        """Record that an inner step of a group that trains apart has ended, or that the first is about to begin."""
        if not self._apart:
            self._apart = True
            self._publish_story()
        now = time.monotonic()
        if self._commits:
            self._longest = max(self._longest, now - self._since)
        self._since = now
        self.publish()

    def receive(self, event: dict[str, Any]) -> None:
        """Take an event of the event log. Called on the thread that emits it."""
        if event.get("replica_id") != self._replica_id or event.get("rank") != self._options.group_rank:
            return
        name = event["event"]
        if name in _STEP_ENDS:
            if name == "commit":
                self._commits += 1
                self._longest = max(self._longest, float(event.get("duration", 0.0)))
            self._since = time.monotonic()
        elif name == "leave":
            self._leaving = True
        self.publish()
        if name == "commit":
            return
        if name == "quorum":
            self._quorum = event
        elif name == "configure":
            self._configured = event
        elif name in ("error", "abort", "drop"):
            self._error = event.get("reason", self._error)
        else:
            return
        self._publish_story()

    def pause(self, seconds: float) -> None:
        """Begin an announced pause of `seconds`; 0 ends it. The current step's time counts from here."""
        self._since = time.monotonic()
        self._pause_ends = self._since + seconds if seconds else 0.0
        self.publish()

    def leave(self) -> None:
        """Record that this process ends, so that the supervisor sends it no more requests."""
        self._leaving = True
        self.publish()

    def read(self) -> dict[str, Any]:
        """Return the status as the supervisor reports it."""
        moment = Moment(*self._moment())
        return worker_status.status_of(moment, self._story(), time.monotonic(), time.time())

    def _story(self) -> dict[str, Any]:
        configured = float(self._configured.get("t", 0.0)) - float(self._configured.get("duration", 0.0))
        return {
            "replica_id": self._replica_id,
            "rank": self._options.group_rank,
            "world_size": self._options.group_world_size,
            "attempt": self._options.attempt,
            "pid": os.getpid(),
            "answers": self.thread_id,
            "main_thread": f"0x{threading.main_thread().ident or 0:016x}",
            "timeout": self._options.timeout,
            "number": self._quorum.get("number"),
            "members": self._quorum.get("members", []),
            "config": self._configured.get("config"),
            "configured": max(0.0, configured),
            "error": self._error,
            "apart": self._apart,
            "story": self._group_story()[-_KEPT:],
            "story_t": time.time(),
        }

    def _publish_story(self) -> None:
        board = self._board
        if board is None:
            return
        with self._lock:
            self._stories += 1
            board.write_story(self._stories, self._story())
