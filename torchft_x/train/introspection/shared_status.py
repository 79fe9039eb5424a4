"""Where this rank is, written where its supervisor can read it (observe/worker_status.py), whoever holds Python's lock.

The memory is anonymous (memfd): no disk is behind it, whose slowness a store would have to wait for, and nothing stays
when the process is killed. In the life's private folder ``<rank>.status`` leads to it.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from torchft_x.core.commit.step import Phase, Step
from torchft_x.observe import worker_status
from torchft_x.observe.worker_status import MOMENT, Moment
from torchft_x.train.introspection.query_server import lead
from torchft_x.train.setup.options import Options

_NUMBERS = {id(phase): worker_status.PHASES.index(phase.value) for phase in Phase}  # an Enum's own hash takes longer
_pack = MOMENT.pack_into
_STEP_ENDS = ("joined", "rehearsal", "commit", "drop")
_KEPT = 8  # newest losses, and decisions of the group


class Board:
    """The memory. Any thread may write: each record is one store under Python's lock."""

    def __init__(self, path: str) -> None:
        """`path` shall lead to it. Raises OSError."""
        self._fd = os.memfd_create("torchft_x-status", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, worker_status.SIZE)
        self._memory = mmap.mmap(self._fd, worker_status.SIZE)
        whole = memoryview(self._memory)
        self._moments = [whole[worker_status.place_of_moment(n) :][: MOMENT.size] for n in (0, 1)]
        self._whole = whole
        self._numbers = itertools.count(1)  # of moments and stories; `next` is atomic
        lead(path, self._fd)

    def write(self, *moment: Any) -> None:
        """The fields of a `Moment`."""
        number = next(self._numbers)
        _pack(self._moments[number & 1], 0, number, *moment, number)

    def write_story(self, number: int, values: dict[str, Any]) -> None:
        at, data = worker_status.encode_story(number, values)
        self._whole[at : at + len(data)] = data


class SharedStatus:
    """Of one Manager. Its methods may be called on any thread, and wait for none."""

    def __init__(
        self, options: Options, step: Step, replica_id: str, group_story: Callable[[], list[str]] = list
    ) -> None:
        self._options = options  # fixed
        self._step = step  # read only
        self._replica_id = replica_id  # fixed
        self._group_story = group_story  # what the group has decided lately, if this rank knows it
        self._board: Board | None = None  # None: nobody reads
        self._lock = threading.Lock()  # of the story
        self._told = 0  # number of the newest story
        self._since = time.monotonic()  # when the step in hand began: the end of the one before
        self._longest = 0.0  # seconds of the longest committed step, or of what was done between two
        self._commits = 0  # steps committed in this life
        self._quorum: dict[str, Any] = {}  # of the newest `quorum` event
        self._configured: dict[str, Any] = {}  # of the newest `configure` event
        self._lost: list[dict[str, Any]] = []  # newest `member_lost` events
        self._error: str | None = None  # newest reason of an `error`, `abort` or `drop`
        self._pause_ends = 0.0  # monotonic; of an announced pause
        self._leaving = False
        self._waits = False  # for other groups
        self._apart = False  # this group trains apart: its inner steps are its progress
        self.thread_id = 0  # of who answers in this process (query_server.py), as the kernel counts; 0: nobody

    def show(self, board: Board | None) -> None:
        """Write to this one from now on."""
        self._board = board
        self._publish_story()
        self.publish()

    def publish(self, *, story: bool = False) -> None:
        """The step has changed. Half a microsecond, three or four times a step. `story`: the group has decided something."""
        if story:
            self._publish_story()
        board, step = self._board, self._step
        if board is not None:
            board.write(
                step.state.step, _NUMBERS[id(step.phase)], self._since, self._longest, self._pause_ends, self._commits,
                step.quorum_id, step.size, self._leaving, self._waits,
            )  # fmt: skip

    def waits(self, waits: bool) -> None:
        """A wait for other groups begins, or has ended."""
        self._waits = waits
        self.publish()

    def asked(self) -> None:
        """A step begins: what was done since the last one (an evaluation) is as usual as a step, once seen."""
        if self._commits:
            self._longest = max(self._longest, time.monotonic() - self._since)

    def trained(self) -> None:
        """An inner step of a group that trains apart has ended, or such a group is about to begin."""
        if not self._apart:
            self._apart = True
            self._publish_story()
        now = time.monotonic()
        if self._commits:
            self._longest = max(self._longest, now - self._since)
        self._since = now
        self.publish()

    def hear(self, event: dict[str, Any]) -> None:
        """Of the event log, on whatever thread emits it."""
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
        elif name == "member_lost":
            lost = {"replica_id": event.get("lost"), "reason": str(event.get("reason"))[:200]}
            lost |= {"t": event.get("t"), "left": bool(event.get("left"))}
            self._lost = [*self._lost[1 - _KEPT :], lost]
        elif name in ("error", "abort", "drop"):
            self._error = event.get("reason", self._error)
        else:
            return
        self._publish_story()

    def pause(self, seconds: float) -> None:
        """An announced pause begins; 0: it ends, and the step in hand counts from here."""
        self._since = time.monotonic()
        self._pause_ends = self._since + seconds if seconds else 0.0
        self.publish()

    def leave(self) -> None:
        """This process ends; nobody must ask it anything any more."""
        self._leaving = True
        self.publish()

    def read(self) -> dict[str, Any]:
        """What the supervisor makes of it."""
        step = self._step
        moment = Moment(
            step.state.step, _NUMBERS[id(step.phase)], self._since, self._longest, self._pause_ends, self._commits,
            step.quorum_id, step.size, self._leaving, self._waits,
        )  # fmt: skip
        return worker_status.tell(moment, self._story(), time.monotonic(), time.time())

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
            "lost": self._lost,
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
            self._told += 1
            board.write_story(self._told, self._story())
