"""One attempt of a group (of its part on this node): its workers and their store, until no process of it is left.

The workers are the supervisor's own children, started cold or forked by the warm parent, with the environment that torchrun
would give them. torchrun itself isn't used (decision 31): its rendezvous listens on all interfaces and unpickles data from
any sender. The supervisor watches each by pidfd, so it knows the cause of a death within a millisecond, and kills the rest of
the group, which shares its fate, at once.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchft_x.launch.process import process_tree
from torchft_x.launch.process.environment import error_file, worker_environment
from torchft_x.launch.process.group_store import SHIM, GroupStore, loopback
from torchft_x.launch.process.hangs import STOPPED, StoppedProcesses
from torchft_x.launch.process.output import Relay
from torchft_x.launch.process.restarts import OWN_FAULTS, AttemptEnd, exception_in
from torchft_x.launch.workers.warm_client import WarmParent
from torchft_x.net import parse_address

_WORDS = 20  # output lines of the store's process that are quoted if it failed
_EVENTS_READ = 1 << 18  # bytes of a worker's event file searched for its first commit, or its end
_COMMITTED, _FINISHED = b'"event":"commit"', b'"finished":true'


@dataclass(frozen=True, kw_only=True)
class AttemptSpec:
    """Command, environment and node of an attempt to be started."""

    command: tuple[str, ...]
    """Script and arguments."""
    workers: int
    """Processes on this node."""
    env: dict[str, str] = field(repr=False)
    """Complete environment of the trainer."""
    folder: Path
    """Private, empty folder on a local disk, for pipes and error files."""
    run_dir: Path | None
    """Directory for logs. Its event files tell whether a step was committed."""
    name: str
    """Prefix of the log files, e.g. ``group-1-attempt-0``; the same on all nodes."""
    node: int = 0
    nodes: int = 1
    meeting: str = ""
    """host:port of the workers' store (MASTER_ADDR, MASTER_PORT), for a group over several nodes only."""
    listener: socket.socket | None = None
    """Listening socket of that store, on node 0 of several nodes only."""
    program: bool = False
    """Whether the command is any program, not a Python script. It is one process, without a rendezvous."""
    labels: Mapping[str, Any] | None = None
    """Labels of each output line, if lines are wanted as JSON."""

    def who(self, rank: int) -> str:
        """Return the name, for people, of the worker with that local rank."""
        return "the program" if self.program else f"worker {self.first_rank + rank}"

    @property
    def file_name(self) -> str:
        """`name`, made different on each node, because nodes may share the directory."""
        return self.name if self.nodes == 1 else f"{self.name}-node-{self.node}"

    @property
    def first_rank(self) -> int:
        """Group rank of this node's first worker."""
        return self.node * self.workers


class _Worker:
    """Worker process, and how it ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = process_tree.open_pidfd(pid)  # readable when it ends; None if it has ended, or on an old kernel
        self.code: int | None = None  # exit code or -signal, once known
        self.gone = False  # whether it has ended and was collected
        self.stopped = False  # whether a signal or a debugger has stopped it

    def poll(self) -> None:
        self.stopped = not self.gone and process_tree.state(self.pid) in STOPPED


class Attempt:
    """Attempt of a group's part on this node: starts its processes, watches them and ends them.

    Used on the process's main thread only, because the death signal is tied to the thread that starts the workers.
    """

    def __init__(self, spec: AttemptSpec, warm: WarmParent | None = None) -> None:
        self.spec = spec  # fixed
        self._warm = warm  # forks the workers, if it can
        self._started = time.monotonic()
        self._stopping = False  # whether workers were told to stop: each may take the grace, and its code means nothing
        logs = None if spec.run_dir is None else spec.run_dir / "logs"
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
        self.log = logs and logs / f"{spec.file_name}.log"  # file for the workers' output
        self.relay = Relay(
            spec.folder, spec.workers, self.log, spec.first_rank if spec.nodes > 1 else None, spec.labels
        )
        self._workers: dict[int, _Worker] = {}  # by local rank
        self._halts = StoppedProcesses()  # workers that are stopped, and for how long
        self._log = spec.folder / "store.log"  # output of the store's process
        listener = loopback() if spec.nodes == 1 and not spec.program else spec.listener
        # None if another node serves it, or for a program.
        self._store = None if listener is None else GroupStore(listener, spec.env, self._log, self._fork_store)
        self._store_fd: int | None = None  # pidfd of the store's process, once that runs
        self._store_code: int | None = None  # exit code or -signal of that process
        environs = _environments(spec, self._store)
        forked = "there is no warm parent" if warm is None or spec.program else warm.fork(spec, environs)
        self.cold = forked if isinstance(forked, str) else None  # reason for a cold start; None: forked
        pids = [_start(spec, rank, e) for rank, e in enumerate(environs)] if isinstance(forked, str) else forked
        self._workers = {rank: _Worker(pid) for rank, pid in enumerate(pids)}
        if self._store is not None and spec.workers * spec.nodes > 1:  # several ranks need it at once
            self._store.start()
            self._watch_store()

    def _fork_store(self, store: GroupStore) -> int | None:
        """Fork the store's process from the warm parent, and return its pid, or None if that can't be done."""
        if self._warm is None or not self._warm.is_ready:
            return None
        pid = self._warm.fork_store(store)
        if pid is None:  # a process forked nevertheless would serve beside the next one
            self._collect(process_tree.kill_descendants(keep=self.pids.values()))
        return pid

    def _watch_store(self) -> None:
        if self._store is not None and self._store.pid is not None:
            self._store_fd = process_tree.open_pidfd(self._store.pid)

    @property
    def pids(self) -> dict[int, int]:
        """Pids of the workers, by group rank."""
        return {self.spec.first_rank + rank: worker.pid for rank, worker in self._workers.items()}

    @property
    def uptime(self) -> float:
        return time.monotonic() - self._started

    def fds(self) -> list[int]:
        """Return the descriptors that become readable when `poll` has work to do."""
        pidfds = [w.pidfd for w in self._workers.values() if w.pidfd is not None and not w.gone]
        process = [self._store_fd] if self._store_fd is not None and self._store_code is None else []
        store = self._store.fds() if self._store is not None else []
        return [*self.relay.fds(), *pidfds, *process, *store]

    def poll(self) -> AttemptEnd | None:
        """Pass on output, and return None while the attempt runs.

        When the attempt has ended, or a worker's failure ends it, kill the rest and return how it ended.
        """
        self.relay.pump()
        self._collect(process_tree.reap())
        for worker in self._workers.values():
            worker.poll()
        if self._store is not None and self._store.tend():
            self._watch_store()
        failed = [r for r, w in self._workers.items() if w.code]
        if self._store_code is None and not self._is_over(bool(failed)):
            return None
        return self._end(failed)

    def _is_over(self, failed: bool) -> bool:
        """Return whether this node's part of the attempt is over.

        On several nodes it lasts until the group's attempt is over, even if this node's workers have finished: the
        other nodes' workers may still use node 0's store. When stopping, it ends with this node's workers.
        """
        if self._stopping:
            return all(w.gone for w in self._workers.values())
        return failed or (self.spec.nodes == 1 and self.has_finished)

    def halt(self) -> tuple[str, float] | None:
        """Return a change, since the last call, in which worker is stopped, as seen by the last `poll`; None if none.

        The change is the worker's name and the seconds for which it has been stopped, or ('', 0.0) once no worker is.
        """
        news = self._halts.poll(
            {r: process_tree.turns(w.pid) for r, w in self._workers.items() if w.stopped}, time.monotonic()
        )
        return None if news is None else ("" if news[0] is None else self.spec.who(news[0]), news[1])

    def terminate(self) -> None:
        """Ask the workers to stop (SIGTERM)."""
        self._stopping = True
        process_tree.send([w.pid for w in self._workers.values() if not w.gone], signal.SIGTERM)

    def kill(self) -> AttemptEnd:
        """Kill the attempt now, and return how it ended. If all workers had finished, it counts as finished."""
        self._stopping = self._stopping or not self.has_finished
        return self._end([])

    # --- how it ended --------------------------------------------------------------------------------------------------

    def _collect(self, ended: dict[int, int]) -> None:
        if self._store is not None and self._store.pid in ended:
            self._store_code = ended[self._store.pid]
        for worker in self._workers.values():
            if worker.pid in ended and worker.code is None:
                worker.code, worker.gone = ended[worker.pid], True

    @property
    def has_finished(self) -> bool:
        """Whether every worker is known to have exited with 0."""
        return all(w.code == 0 for w in self._workers.values())

    def _end(self, failed: list[int]) -> AttemptEnd:
        uptime = self.uptime
        well = self.has_finished and not self._stopping
        store_failed = self._store_code is not None and not failed  # then the workers are killed with it
        self._collect(process_tree.kill_descendants(keep=self._warm.keep() if self._warm is not None else ()))
        self.relay.close()
        if not store_failed:
            failed = failed or [r for r, w in self._workers.items() if w.code]
        progress = any(_holds(self._events(w.pid), os.SEEK_SET, _COMMITTED) for w in self._workers.values())
        if self._store is not None:
            self._store.close()
        for fd in (self._store_fd, *(w.pidfd for w in self._workers.values())):
            if fd is not None:
                os.close(fd)
        if well:
            return AttemptEnd(True, 0, "finished", False, progress, uptime, managed=self._had_manager)
        code, reason, words = self._blame(failed)
        own = code > 0 or -code in OWN_FAULTS
        after_end = any(_holds(self._events(self._workers[r].pid), os.SEEK_END, _FINISHED) for r in failed)
        # An exception that ended the script before a worker had a Manager, or after one had finished.
        fault = exception_in(words) if code > 0 and (after_end or not self._had_manager) else ""
        return AttemptEnd(False, code, reason, own, progress, uptime, words, bool(failed), fault, after_end)

    @property
    def _had_manager(self) -> bool:
        """Whether a worker has made a Manager."""
        return any(os.path.lexists(self.spec.folder / f"{rank}.status") for rank in self.pids)

    def _blame(self, failed: list[int]) -> tuple[int, str, tuple[str, ...]]:
        """Return code, reason and last lines of stderr of the first failure: one by a signal, rather than those that followed."""
        if not failed:
            return self._blame_store()
        rank = min(failed, key=lambda r: ((self._workers[r].code or 0) > 0, r))
        code = self._workers[rank].code or 0
        words = self.relay.tail(rank)
        name = self.spec.who(rank)
        if code > 0:
            return code, f"{name} exited with code {code}", words
        if code == -signal.SIGABRT and any("EnforceNotMet" in w and "preamble" in w for w in words):
            mismatch = "layout mismatch: the groups reduce tensors of different sizes or in different order"
            return code, f"{name} aborted by gloo, {mismatch}", ()
        return code, f"{name} killed by {process_tree.signal_name(-code)}", words

    def _blame_store(self) -> tuple[int, str, tuple[str, ...]]:
        """Return code, reason and last lines if no worker has failed, but perhaps the store's process."""
        if self.has_finished:
            return 1, "its workers ended when they were asked to", ()
        code = self._store_code if self._store_code is not None else -signal.SIGKILL
        how = f"killed by {process_tree.signal_name(-code)}" if code < 0 else f"ended with code {code}"
        words = self._log.read_text("utf-8", "replace").splitlines() if code > 0 and self._log.exists() else []
        last = tuple([line.rstrip() for line in words if line.strip()][-_WORDS:])
        return code or 1, f"the process with the group's store {how}", last

    def _events(self, pid: int) -> list[Path]:
        """Return that worker's event files."""
        return [] if self.spec.run_dir is None else list(self.spec.run_dir.glob(f"events/*-{pid}.*jsonl"))


def _holds(files: list[Path], whence: int, event: bytes) -> bool:
    """Return whether the first or last bytes of a file hold `event`."""
    for path in files:
        with open(path, "rb") as f:
            if whence == os.SEEK_END:
                f.seek(max(0, os.fstat(f.fileno()).st_size - _EVENTS_READ))
            if event in f.read(_EVENTS_READ):
                return True
    return False


def _environments(spec: AttemptSpec, store: GroupStore | None) -> list[dict[str, str]]:
    """Return the environment of each worker of this node, or of the program. Make the folders for the workers' error files."""
    if spec.program:
        return [spec.env]
    assert spec.meeting or store is not None, "a group on one node has a store of its own"
    at = parse_address(spec.meeting) if store is None or spec.meeting else store.address
    ranks = {"workers": spec.workers, "node": spec.node, "nodes": spec.nodes}
    for rank in range(spec.workers):
        error_file(spec.folder, rank).parent.mkdir(parents=True)
    return [
        worker_environment(spec.env, at, spec.folder, name=spec.name, local_rank=rank, **ranks)
        for rank in range(spec.workers)
    ]


def _start(spec: AttemptSpec, rank: int, environ: dict[str, str]) -> int:
    kind = "program" if spec.program else "worker"
    shim = [sys.executable, "-S", SHIM, kind, str(os.getpid()), str(rank), str(spec.folder)]  # -S: skip site-packages
    process = subprocess.Popen([*shim, *spec.command], env=environ, stdin=subprocess.DEVNULL, start_new_session=True)
    process.returncode = 0  # collected by the supervisor (process_tree.reap), not by Popen
    return process.pid
