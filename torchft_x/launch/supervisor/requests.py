"""Requests to a supervisor to stop, which end the main thread's sleep.

They come from signals, from the lighthouse, from the launcher's death, and from the supervisor itself; the first counts.

A fence file holds the name of the newest of several starts of a supervisor, written by the launcher at that start. A launcher
that starts a supervisor elsewhere can't always stop the earlier one, which may run on behind a broken network. When the
network is back, the two would fence each other's attempts in turn, so the earlier one stops by this file.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from torchft_x.launch.process import process_tree
from torchft_x.timing import POLL_SLOW, TIMING

_LONGEST = 10.0  # seconds; longest sleep, so that the file of ``--alive`` is touched often enough


@dataclass(frozen=True)
class Stop:
    """Reason for which the supervisor ends, and its exit code."""

    code: int
    sentence: str
    from_outside: bool = False  # by a signal or the launcher's death: the sender may restart this supervisor


def grace_is_over(waited: float, grace: float, notice: float, *, saves: bool) -> bool:
    """Return whether processes that were told to stop `waited` seconds ago must be killed now.

    `notice` is the time in seconds after which the scheduler or launcher that stopped us kills all that is left, this
    process too. A process that reports that it `saves` its last step gets `notice`, less the time for our last acts, where
    that is longer than `grace`.
    """
    return waited > (max(grace, notice - TIMING.last_acts) if saves else grace)


class StopRequests:
    """Requests to stop this process, and the interruptible sleep of its main thread.

    At most one per process, because it takes the wake-up descriptor of signals. Each sleep touches the file `alive`. One of
    the signals `hurries` after the first request ends the grace. By default SIGTERM is none: Slurm sends it twice.
    """

    def __init__(self, alive: Path | None = None, *, hurries: tuple[int, ...] = (signal.SIGINT,)) -> None:
        self.first: Stop | None = None  # set once, by any thread; read on the main thread
        self.hurry = False  # whether a second signal has ended the grace
        self._hurries = hurries
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._alive = alive

    def request(self, code: int, sentence: str, *, from_outside: bool = False) -> None:
        """Request a stop, from any thread or a signal handler."""
        if self.first is None:
            self.first = Stop(code, sentence, from_outside)
        self.wake()

    def wake(self) -> None:
        """End the main thread's sleep, from any thread."""
        try:
            self._wake_write.send(b"!")
        except OSError:  # the socket is full, so the main thread wakes up anyway
            pass

    def watch_signals(self) -> None:
        """Turn SIGTERM, SIGINT and SIGHUP into requests to stop."""
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup asked to ignore it
                signal.signal(number, self._on_signal)

    def watch_launcher(self, pid: int | None, code: int) -> None:
        """Request a stop with this exit code when the launcher dies. `pid` is None if the launcher is our parent."""
        process_tree.when_parent_dies(pid, lambda: self.request(code, "the launcher is gone", from_outside=True))

    def _on_signal(self, number: int, frame: object) -> None:
        self.hurry = self.hurry or (self.first is not None and number in self._hurries)
        self.request(128 + number, f"stopped by {process_tree.signal_name(number)}", from_outside=True)

    # --- the main thread's -----------------------------------------------------------------------------------------------

    def sleep(self, seconds: float, fds: Iterable[int] = ()) -> None:
        """Sleep until a descriptor is readable, `wake` is called or the time is over; perhaps less. Main thread only."""
        if self._alive is not None:
            with contextlib.suppress(OSError):
                self._alive.touch()
        poller = select.poll()
        for fd in (self._wake_read.fileno(), *fds):
            poller.register(fd, select.POLLIN)
        poller.poll(min(max(0.0, seconds), _LONGEST) * 1000)
        try:
            while self._wake_read.recv(4096):
                pass
        except BlockingIOError:
            pass

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the condition is true; return False after a request to stop or a timeout.

        The thread that makes the condition true must call `wake`.
        """
        until = time.monotonic() + seconds
        while self.first is None and time.monotonic() < until:
            if condition():
                return True
            self.sleep(until - time.monotonic())
        return self.first is None and condition()


def superseded(file: Path, mine: str) -> bool:
    """Return whether the file names a newer start than `mine`. A file that can't be read does not count."""
    try:
        text = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return False
    return bool(text) and text != mine


def watch_fence(file: str, mine: str, then: Callable[[str], object]) -> None:
    """Call `then(sentence)` once, on a thread of its own, when the start `mine` is superseded.

    The thread of its own is needed because the file system may hang.
    """

    def poll() -> None:
        never = threading.Event()
        while not superseded(Path(file), mine):
            never.wait(POLL_SLOW)
        then("it was started again elsewhere, and this is the one before")

    threading.Thread(target=poll, name="fence", daemon=True).start()
