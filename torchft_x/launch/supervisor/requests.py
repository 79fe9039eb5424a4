"""What a supervisor is asked for: to stop, and what a person wants of its group; and the main thread's sleep that this ends.

Requests to stop come from signals, from the lighthouse, from the launcher's death, and from the supervisor itself; the first
counts. A person's orders come through the lighthouse (core/job/orders.py).
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from torchft_x import env
from torchft_x.launch.process import process_tree
from torchft_x.timing import TIMING

_LONGEST = 10.0  # seconds of a sleep, so that the file of TORCHFT_X_ALIVE stays new


@dataclass(frozen=True)
class Stop:
    """Why the supervisor ends, and its exit code."""

    code: int
    sentence: str
    from_outside: bool = False  # by a signal, or the launcher's death: whoever sent it may start this again


def grace_is_over(waited: float, grace: float, notice: float, *, saves: bool) -> bool:
    """Whether processes that were told to end `waited` seconds ago must be ended now. `notice`: seconds after which whoever told us
    kills what is left, this process as well. A process that says that it saves its last step gets as much of them as there is."""
    return waited > (max(grace, notice - TIMING.last_acts) if saves else grace)


class StopRequests:
    """One per process: it takes the wake-up descriptor of signals."""

    def __init__(self) -> None:
        self.first: Stop | None = None  # set once, by any thread; read on the main thread
        self.hurry = False  # a second request came: no grace any more
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._alive = env.read(env.ALIVE)

    def request(self, code: int, sentence: str, *, from_outside: bool = False) -> None:
        """From any thread, also from a signal handler. One `from_outside` after the first request ends the grace."""
        if self.first is None:
            self.first = Stop(code, sentence, from_outside)
        elif from_outside:
            self.hurry = True
        self.wake()

    def wake(self) -> None:
        """End the main thread's sleep. From any thread."""
        try:
            self._wake_write.send(b"!")
        except OSError:  # full: it will wake up anyway
            pass

    def watch_signals(self) -> None:
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup asked to ignore it
                signal.signal(number, self._on_signal)

    def watch_launcher(self, pid: int | None, code: int) -> None:
        """Stop with this code when it is gone. `pid` None: our parent is the launcher."""
        process_tree.when_parent_dies(pid, lambda: self.request(code, "the launcher is gone", from_outside=True))

    def _on_signal(self, number: int, frame: object) -> None:
        self.request(128 + number, f"stopped by {process_tree.signal_name(number)}", from_outside=True)

    # --- the main thread's -----------------------------------------------------------------------------------------------

    def sleep(self, seconds: float, fds: Iterable[int] = ()) -> None:
        """Until one of these has something, a request to stop arrives, or the time is over; perhaps less."""
        if self._alive is not None:
            with contextlib.suppress(OSError):
                Path(self._alive).touch()
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
        """Until it is true; False: told to stop, or time is up. Whoever makes it true must `wake` us."""
        until = time.monotonic() + seconds
        while self.first is None and time.monotonic() < until:
            if condition():
                return True
            self.sleep(until - time.monotonic())
        return self.first is None and condition()


class TakenOrders:
    """What a person has asked of the group. Set by the client's thread, each a whole value; read on the main thread, which `wake` wakes."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.rests = False  # drained: no life is to run
        self._kill = ("", "")  # the life that is to be killed, and why
        self._wake = wake

    def take(self, kind: str, life: str, sentence: str) -> None:
        """From the client's thread. What this version does not know is left."""
        if kind == "kill":
            self._kill = (life, sentence)
        elif kind in ("drain", "resume"):
            self.rests = kind == "drain"
        self._wake()

    def why_kill(self, life: str) -> str:
        """Why this life is to be killed; '': it isn't."""
        asked, sentence = self._kill
        return sentence if asked and asked == life else ""
