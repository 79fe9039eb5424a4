"""The supervisor's side of the warm parent (warm_server.py): start it, ask it for processes, do without it.

It is started a few seconds into a life, so that it doesn't slow down the start itself, and is there for all that
follow. Whatever is wrong with it costs warmth only: the next life is a cold one, and says why.
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
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchft_x.launch.process import process_tree
from torchft_x.launch.workers import warm_rules

if TYPE_CHECKING:
    from torchft_x.launch.process.environment import Rendezvous
    from torchft_x.launch.process.group_store import GroupStore
    from torchft_x.launch.workers.attempt import AttemptSpec

_PARENT = str(Path(__file__).with_name("warm_server.py"))
_REPLY = 10.0  # seconds a fork may take; some hundredths are usual, and a cold start costs more on any machine
_LOSSES = 3  # parents lost after they were ready, before there is no other one


class WarmParent:
    """The warm parent of one supervisor, or the reason why there is none. Used by its main thread."""

    def __init__(self, never: str | None, after: float, tell: Callable[..., None]) -> None:
        self._never = never  # why no life is warm, ever
        self._after = after  # seconds of a life before the imports may compete with it for the processors
        self._tell = tell  # takes fields for the event log
        self._process: subprocess.Popen[bytes] | None = None  # while one runs
        self._socket: socket.socket | None = None  # to it
        self._received = b""  # of a message whose end has not come yet
        self._given: dict[str, str] = {}  # the environment it was started with
        self._log = ""  # file with its words, for people
        self._ready = False  # its imports are done
        self._why = "the warm parent is not started in the first seconds of a life"  # while it isn't ready
        self._losses = 0

    # --- keeping it ------------------------------------------------------------------------------------------------------

    def tend(self, spec: AttemptSpec, uptime: float) -> None:
        """Called all the time while a life runs."""
        self._look()
        if self._process is None and self._never is None and uptime > self._after:
            self._start(spec)

    def keep(self) -> tuple[int, ...]:
        """Processes that outlive a life."""
        return () if self._process is None else (self._process.pid,)

    def close(self) -> None:
        """End it."""
        self._give_up("the supervisor ends")

    def _start(self, spec: AttemptSpec) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(_REPLY)  # for a request that it does not take in
        self._log = os.devnull if spec.run_dir is None else str(spec.run_dir / "logs" / f"{spec.file_name}.warm.log")
        command = [
            sys.executable,
            "-u",
            _PARENT,
            str(theirs.fileno()),
            str(os.getpid()),
            *spec.command,
        ]
        environ = {**spec.env, "OPENBLAS_NUM_THREADS": "1"}  # else NumPy starts threads when it is imported
        with open(self._log, "wb") as log, theirs:
            self._process = subprocess.Popen(
                command,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        self._socket, self._given, self._received = ours, spec.env, b""
        self._why = "the warm parent is still importing"

    def _look(self) -> None:
        """Take in what it has said meanwhile."""
        while self._socket is not None:
            words = self._read(0.0)
            if words is None:
                return
            self._hear(words)

    def _hear(self, words: dict[str, Any]) -> None:
        if words.get("ready"):
            self._ready = True
            self._tell(duration=words["duration"], resident=words["resident"], failed=words["failed"] or None)
        elif "unfit" in words:
            self._never = f"{words['unfit']}"
            self._tell(reason=self._never)
            self._forget(self._never)

    def _read(self, seconds: float) -> dict[str, Any] | None:
        """One message; None: none within the time, or it is gone."""
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
            self._never = f"the warm parent ended during its imports, see {self._log}"
        self._losses += 1
        if self._losses >= _LOSSES:
            self._never = self._never or f"the warm parent was lost {self._losses} times"
        why = self._never or "the warm parent is gone"
        self._tell(reason=why)
        self._forget(why)

    def _forget(self, why: str) -> None:
        self._ready, self._why = False, why
        if self._process is not None:
            self._process.returncode = 0  # collected by the supervisor (tree.reap), not by Popen
        self._process = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # --- asking it -------------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked."""
        self._look()
        return self._ready

    def fork(self, spec: AttemptSpec, meet: Rendezvous, store: GroupStore | None) -> list[int] | str:
        """Start that life's workers, and the store if it is given; the workers' pids, or why they must be started cold.
        Nothing else of the group may run."""
        ready = self.is_ready
        why = self._never or (None if ready else self._why) or warm_rules.difference(self._given, spec.env)
        if why is not None:
            return why
        pids = self._ask({"env": spec.env, "meet": asdict(meet)}, store)
        if not pids:
            process_tree.kill_descendants()  # what it may have forked before it was lost
        elif store is not None:
            store.pid = pids.pop()
        return pids or self._why

    def fork_store(self, store: GroupStore) -> int | None:
        """The process that serves it. None: the parent is lost; what it may have forked must be ended."""
        pids = self._ask({}, store)
        return pids[0] if pids else None

    def _ask(self, request: dict[str, Any], store: GroupStore | None) -> list[int]:
        """Pids of what it forks for that, the store's last; none: it is lost, `_why` says how."""
        assert self._socket is not None
        fds = [] if store is None else [store.listener.fileno()]
        if store is not None:
            request["store"] = {"log": str(store.log), "host": store.called.host, "port": store.called.port}
        text = json.dumps(request).encode() + b"\n"
        with contextlib.suppress(OSError):  # it is gone: so says the reading
            self._socket.sendall(text[socket.send_fds(self._socket, [text], fds) :])
        words = self._read(_REPLY)
        if words is not None:
            self._hear(words)
        elif self._process is not None:
            self._give_up(f"the warm parent did not answer within {_REPLY:g} s")
        return [] if words is None else list(words.get("pids", ()))

    def _give_up(self, why: str) -> None:
        """End it. Another one is started later."""
        if self._process is not None:
            process_tree.send([self._process.pid], signal.SIGKILL)
            self._forget(why)
