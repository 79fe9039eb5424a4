"""The supervisor's client of the warm parent (warm_server.py): start it, ask it for processes, do without it.

If the first attempt may be forked from the warm parent, it is started with the supervisor, and imports while the
supervisor starts up. Otherwise it is started a few seconds into the first attempt, for all that follow. A failure of
the warm parent costs time only: the next attempt is a cold one, with the reason in its events.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from torchft_x.launch.process import process_tree
from torchft_x.launch.workers import warm_rules
from torchft_x.timing import PATIENCE

if TYPE_CHECKING:
    from torchft_x.launch.process.group_store import GroupStore
    from torchft_x.launch.workers.attempt import AttemptSpec

_PARENT = str(Path(__file__).with_name("warm_server.py"))
_LOSSES = 3  # warm parents that may be lost before no other one is started


class WarmParent:
    """Warm parent of one supervisor, or the reason for which there is none. Used on the supervisor's main thread.

    `never` is a reason for which no attempt may be warm. `command` is the script and its arguments. `log` is a file for
    the parent's output, which need not exist; with None the output is dropped. `after` is the time in seconds into an
    attempt before which imports for later attempts must not compete with it for processors.
    """

    def __init__(self, never: str | None, command: tuple[str, ...], log: Path | None, after: float) -> None:
        self._never = never  # reason for which no attempt is warm from now on
        self._command = command
        self._log = log
        self._after = after
        self.report: Callable[..., None] = lambda **fields: (
            None
        )  # takes fields for the event log; set once that is open
        self._process: subprocess.Popen[bytes] | None = None  # None while no warm parent runs
        self._socket: socket.socket | None = None  # socket to it
        self._received = b""  # first part of a message that is not complete yet
        self._ready = False  # whether it can take a request
        self._asked = False  # whether it was asked to import the modules for later attempts
        # Reason for which it isn't ready.
        self._why = "the warm parent is not started in the first seconds of an attempt"
        self._losses = 0  # warm parents lost so far

    # --- keeping it ------------------------------------------------------------------------------------------------------

    def start_early(self, environ: dict[str, str]) -> None:
        """Start the warm parent before the first attempt, if that attempt may be forked from it.

        `environ` is the attempt's environment, as far as it is known.
        """
        try:
            script = Path(self._command[0]).read_text("utf-8")
        except (OSError, ValueError):
            script = ""  # the attempt will report this error
        why = self._never or warm_rules.why_first_is_cold(script)
        if why is None:
            self._start(environ)
        else:
            self._why = why

    @property
    def is_importing(self) -> bool:
        """Whether imports are under way. An attempt should wait for them: a cold one would have to repeat them all."""
        self._look()
        return self._process is not None and not self._ready

    def fds(self) -> list[int]:
        """Return the descriptors that are readable when the warm parent has sent a message."""
        return [] if self._socket is None else [self._socket.fileno()]

    def tend(self, environ: dict[str, str], uptime: float) -> None:
        """Start the warm parent, or its second imports, once the attempt has run for `after` seconds.

        Call it in each turn of the loop while an attempt with this environment runs. `uptime` is in seconds.
        """
        self._look()
        if uptime <= self._after:
            return
        if self._process is None and self._never is None:
            self._start(environ)
        elif self._ready and not self._asked:
            self._asked, self._ready = True, False
            self._send({"rest": True})

    def keep(self) -> tuple[int, ...]:
        """Return the pids of processes that outlive an attempt."""
        return () if self._process is None else (self._process.pid,)

    def give_up(self, why: str) -> None:
        """Kill the warm parent for this reason. Another one is started later."""
        if self._process is not None:
            process_tree.send([self._process.pid], signal.SIGKILL)
            self._forget(why)

    def close(self) -> None:
        """Kill the warm parent, at the end of the supervisor."""
        self.give_up("the supervisor ends")

    def _start(self, environ: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENCE)  # limits the sending of a request that the parent does not read
        command = [sys.executable, "-u", _PARENT, str(theirs.fileno()), str(os.getpid()), *self._command]
        single = {**environ, "OPENBLAS_NUM_THREADS": "1"}  # by default NumPy starts threads when it is imported
        with self._open_log() as log, theirs:
            self._process = subprocess.Popen(
                command,
                env=single,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        self._socket, self._received = ours, b""
        self._ready = self._asked = False
        self._why = "the warm parent is still importing"

    def _open_log(self) -> BinaryIO:
        """Open the log. Return /dev/null if it can't be written: the supervisor reports that for the whole directory."""
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.parent.mkdir(parents=True, exist_ok=True)
                return open(self._log, "ab")
        return open(os.devnull, "ab")

    def _look(self) -> None:
        """Process the messages that have arrived from the warm parent."""
        while self._socket is not None:
            words = self._read(0.0)
            if words is None:
                return
            self._hear(words)

    def _hear(self, words: dict[str, Any]) -> None:
        if words.get("ready"):
            self._ready = True
            if self._asked:
                self.report(duration=words["duration"], resident=words["resident"], failed=words["failed"] or None)
        elif "unfit" in words:
            self._never = f"{words['unfit']}"
            self.report(reason=self._never)
            self._forget(self._never)

    def _read(self, seconds: float) -> dict[str, Any] | None:
        """Return one message, or None if there is none within so many seconds or the warm parent is gone."""
        until = time.monotonic() + seconds
        while self._socket is not None:
            line, found, rest = self._received.partition(b"\n")
            if found:
                self._received = rest
                return dict(json.loads(line))
            if not select.select([self._socket], [], [], max(0.0, until - time.monotonic()))[0]:
                return None
            try:
                data = self._socket.recv(65536)
            except OSError:
                data = b""
            self._received += data
            if not data:
                self._lost()
        return None

    def _lost(self) -> None:
        if not self._ready:
            self._never = f"the warm parent ended during its imports, see {self._log or 'logs in a run directory'}"
        self._losses += 1
        if self._losses >= _LOSSES:
            self._never = self._never or f"the warm parent was lost {self._losses} times"
        why = self._never or "the warm parent is gone"
        self.report(reason=why)
        self._forget(why)

    def _forget(self, why: str) -> None:
        self._ready, self._why = False, why
        if self._process is not None:
            self._process.returncode = 0  # collected by the supervisor (process_tree.reap), not by Popen
        self._process = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # --- asking it -------------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether the warm parent can take a request."""
        self._look()
        return self._ready

    def fork(self, spec: AttemptSpec, environs: list[dict[str, str]]) -> list[int] | str:
        """Fork an attempt's workers, each with its environment. No other process of the attempt may run.

        Return their pids, or the reason for which they must be started cold.
        """
        if not self.is_ready:
            return self._never or self._why
        pids = self._ask({"workers": environs, "folder": str(spec.folder)})
        if not pids:
            process_tree.kill_descendants()  # processes it may have forked before it was lost
        return pids or self._why

    def fork_store(self, store: GroupStore) -> int | None:
        """Fork the store's process and return its pid. None: the parent is lost, and the caller must kill its forks, if any."""
        asked = {"log": str(store.log), "host": store.called.host, "port": store.called.port}
        pids = self._ask({"store": asked, "workers": [{}]}, [store.listener.fileno()])
        return pids[0] if pids else None

    def _ask(self, request: dict[str, Any], fds: list[int] | None = None) -> list[int]:
        """Request forks and return their pids; none if the parent is lost (reason in `_why`)."""
        self._send(request, fds)
        words = self._read(PATIENCE)
        if words is None:
            self.give_up(f"the warm parent did not answer within {PATIENCE:g} s")
            return []
        self._hear(words)
        return list(words.get("pids", ()))

    def _send(self, request: dict[str, Any], fds: list[int] | None = None) -> None:
        assert self._socket is not None
        text = json.dumps(request).encode() + b"\n"
        with contextlib.suppress(OSError):  # the parent is gone, which the next read detects
            self._socket.sendall(text[socket.send_fds(self._socket, [text], fds or []) :])
