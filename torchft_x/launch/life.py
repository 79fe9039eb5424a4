"""One life of a group (of its part on this node): torchrun and its workers, until no process of it is left.

torchrun tells "1" for whatever befalls a worker, and only at its next poll. So each worker announces its pid
(shim.py), the supervisor watches it by pidfd and reads how it ended before torchrun collects it: the cause is known
within a millisecond, and the rest of the group, which shares its fate, is killed at once.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torchft_x.launch import tree
from torchft_x.launch.halts import STOPPED, Halts
from torchft_x.launch.output import Relay
from torchft_x.launch.restarts import OWN_FAULTS, LifeEnd
from torchft_x.launch.warm import Forked, Warm

SHIM = str(Path(__file__).with_name("shim.py"))
_POLL = "0.05"  # seconds between torchrun's looks at its workers; ours hardly ever wait for it
_MEET = 120  # seconds within which torchrun of every node must have come; all are told to start at the same time
_EVENTS_READ = 1 << 18  # bytes of a worker's event file searched for its first commit


@dataclass(frozen=True, kw_only=True)
class LifeSpec:
    """What to start."""

    command: tuple[str, ...]
    """Script and arguments."""
    workers: int
    """Processes on this node."""
    env: dict[str, str] = field(repr=False)
    """The whole environment of the trainer."""
    folder: Path
    """Private, empty, on a local disk: pipes and torchrun's files."""
    run_dir: Path | None
    """For logs, and to see from the event files whether a step was committed."""
    name: str
    """Of the log files, e.g. ``group-1-attempt-0``; the same on all nodes."""
    local_addr: str
    """What torchrun gives the workers as MASTER_ADDR."""
    node: int = 0
    nodes: int = 1
    meeting: str = ""
    """host:port where torchrun of all nodes meet, and their workers (MASTER_ADDR, MASTER_PORT); of several nodes only."""
    runner: str = "torchrun"
    """``torchrun``; ``plain``: one worker without torchrun (tests of the supervisor without torch); ``program``: the
    command is no Python script but any program."""

    @property
    def bare(self) -> bool:
        """One process, and no torchrun above it."""
        return self.runner != "torchrun"

    def who(self, rank: int) -> str:
        """The worker of that local rank, for people."""
        return "the program" if self.runner == "program" else f"worker {self.first_rank + rank}"

    @property
    def file_name(self) -> str:
        """`name`, different on each node: they may share the directory."""
        return self.name if self.nodes == 1 else f"{self.name}-node-{self.node}"

    @property
    def first_rank(self) -> int:
        """Group rank of this node's first worker."""
        return self.node * self.workers

    def argv(self) -> list[str]:
        rank = "0" if self.bare else "${local_rank}"  # torchrun fills it in
        kind = "program" if self.runner == "program" else "worker"
        worker = [SHIM, kind, "@agent@", rank, str(self.folder), *self.command]
        if self.bare:
            return [sys.executable, *worker]
        torchrun = f"""-m torch.distributed.run --nnodes {self.nodes} --nproc_per_node {self.workers}
            --max_restarts 0 --monitor_interval {_POLL}""".split()
        meet = ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
        if self.nodes > 1:  # static: node k has the ranks after those of node k - 1, in every life
            meet = ["--rdzv_backend", "static", "--rdzv_endpoint", self.meeting, "--rdzv_conf", f"timeout={_MEET}"]
            meet += ["--node_rank", str(self.node)]
        options = ["--rdzv_id", self.name, "--local_addr", self.local_addr, "--log_dir", str(self.folder / "torchrun")]
        return [sys.executable, *torchrun, *meet, *options, *worker]


class _Worker:
    """One announced worker."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = tree.open_pidfd(pid)  # wakes us when it ends; None: it has ended, or an old kernel
        self.code: int | None = None  # exit code or -signal, once known
        self.gone = False  # ended; with code None torchrun was quicker, and tells how in its own log
        self.stopped = False  # by a signal or a debugger

    def look(self) -> None:
        if self.gone:
            return
        state = tree.state(self.pid)
        self.stopped = state in STOPPED
        if state in ("", "Z", "X"):
            self.code = tree.exit_status(self.pid)
            self.gone = True


class Life:
    """Used by one thread, which must be the process's main thread: the death signal is tied to it."""

    def __init__(self, spec: LifeSpec, warm: Warm | None = None) -> None:
        self.spec = spec  # fixed
        self._warm = warm  # forks the workers, if it can
        self._started = time.monotonic()
        self._stopping = False  # workers were asked to end: each may take the grace, their codes mean nothing
        logs = None if spec.run_dir is None else spec.run_dir / "logs"
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
        self.log = logs and logs / f"{spec.file_name}.log"  # what the workers print
        self.relay = Relay(spec.folder, spec.workers, self.log, spec.first_rank if spec.nodes > 1 else None)
        self.before_kill: Callable[[list[int]], None] | None = None  # told the group ranks that failed; must be quick
        os.mkfifo(spec.folder / "pids", 0o600)
        self._pids = os.open(spec.folder / "pids", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._announced = b""  # read from it, the last line may be partial
        self._workers: dict[int, _Worker] = {}  # by local rank
        self._halts = Halts()  # which of them have been stopped, and for how long
        self._agent_log = (spec.folder if logs is None or spec.bare else logs) / f"{spec.file_name}.torchrun.log"
        forked = warm.fork(spec, self._agent_log) if warm is not None else "there is no warm parent"
        self.cold = forked if isinstance(forked, str) else None  # why torchrun was started; None: it was not
        self._agent = self._start_torchrun() if isinstance(forked, str) else forked
        self._agent_code: int | None = None
        self._agent_fd = tree.open_pidfd(self._agent.pid)

    def _start_torchrun(self) -> subprocess.Popen[bytes] | Forked:
        with open(self._agent_log, "wb") as log:
            return subprocess.Popen(
                [sys.executable, SHIM, "agent", str(os.getpid()), *self.spec.argv()],
                env=self.spec.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pids(self) -> dict[int, int]:
        """Of the workers announced so far, by group rank."""
        return {self.spec.first_rank + rank: worker.pid for rank, worker in self._workers.items()}

    @property
    def uptime(self) -> float:
        return time.monotonic() - self._started

    def fds(self) -> list[int]:
        """Descriptors that become readable when `poll` has something to see."""
        pidfds = [w.pidfd for w in self._workers.values() if w.pidfd is not None and not w.gone]
        agent = [self._agent_fd] if self._agent_fd is not None and self._agent_code is None else []
        return [*self.relay.fds(), self._pids, *pidfds, *agent]

    def poll(self) -> LifeEnd | None:
        """Pass on output; when the life has ended, or a worker's failure ends it: kill the rest, say how it ended."""
        self.relay.pump()
        self._read_announcements()
        for worker in self._workers.values():
            worker.look()
        self._collect(tree.reap())
        failed = [r for r, w in self._workers.items() if w.code]
        if self._agent_code is None and not self._need_not_wait(bool(failed)):
            return None
        return self._end(failed)

    def _need_not_wait(self, failed: bool) -> bool:
        """Whether the life may be ended while torchrun still runs.

        torchrun of one of several nodes waits for the others when its workers have exited with 0, and node 0's serves
        the store meanwhile: then it is ended when the group's life is over, or at once if we are stopping anyway.
        """
        several = self.spec.nodes > 1
        if self._stopping:
            return several and len(self._workers) == self.spec.workers and all(w.gone for w in self._workers.values())
        return failed or (not several and self.has_finished)

    def halt(self) -> tuple[str, float] | None:
        """News since the last call, as of the last `poll`: the worker that has been stopped for a while, and for how
        many seconds; empty: none is, any more. None: no news."""
        news = self._halts.look({r: tree.turns(w.pid) for r, w in self._workers.items() if w.stopped}, time.monotonic())
        return None if news is None else ("" if news[0] is None else self.spec.who(news[0]), news[1])

    def terminate(self) -> None:
        """Ask the workers to end (SIGTERM). torchrun is left alone: it would pass the signal on a second time."""
        self._stopping = True
        alive = [w.pid for w in self._workers.values() if not w.gone]
        tree.send(alive or [self._agent.pid], signal.SIGTERM)

    def kill(self) -> LifeEnd:
        """End it now. What had finished well before has."""
        self._stopping = self._stopping or not self.has_finished
        return self._end([])

    # --- how it ended --------------------------------------------------------------------------------------------------

    def _read_announcements(self) -> None:
        try:
            self._announced += os.read(self._pids, 65536)
        except BlockingIOError:
            return
        *lines, self._announced = self._announced.split(b"\n")
        for line in lines:
            rank, pid = line.split()
            self._workers[int(rank)] = _Worker(int(pid))

    def _collect(self, ended: dict[int, int]) -> None:
        if self._agent.pid in ended:
            # Popen must not wait for a pid we have collected
            self._agent_code = self._agent.returncode = ended[self._agent.pid]
        for worker in self._workers.values():  # a warm one becomes ours if its agent ends first
            if worker.pid in ended and worker.code is None:
                worker.code, worker.gone = ended[worker.pid], True

    @property
    def has_finished(self) -> bool:
        """Every worker is known to have exited with 0; torchrun would take a while to say so."""
        return len(self._workers) == self.spec.workers and all(w.code == 0 for w in self._workers.values())

    def _end(self, failed: list[int]) -> LifeEnd:
        uptime = self.uptime
        well = self.has_finished and not self._stopping
        if failed and self.before_kill is not None and not self._stopping:
            self.before_kill([self.spec.first_rank + r for r, w in self._workers.items() if w.gone])
        self._collect(tree.kill_descendants(keep=self._warm.keep() if self._warm is not None else ()))
        self._read_announcements()
        self.relay.close()
        self._learn_from_torchrun()
        failed = failed or [r for r, w in self._workers.items() if w.code]
        progress = any(self._committed(w.pid) for w in self._workers.values())
        for fd in (self._pids, self._agent_fd, *(w.pidfd for w in self._workers.values())):
            if fd is not None:
                os.close(fd)
        if well or (self._agent_code == 0 and not failed and not self._stopping):
            return LifeEnd(True, 0, "finished", False, progress, uptime)
        code, reason, words = self._blame(failed)
        own = code > 0 or -code in OWN_FAULTS
        shown = bool(failed) or self.spec.bare  # torchrun's own words go to its log only
        return LifeEnd(False, code, reason, own, progress, uptime, words, shown)

    def _blame(self, failed: list[int]) -> tuple[int, str, tuple[str, ...]]:
        """Code, reason and last words of whoever failed first; a signal is more telling than its consequences."""
        if not failed:
            return self._blame_torchrun()
        rank = min(failed, key=lambda r: ((self._workers[r].code or 0) > 0, r))
        code = self._workers[rank].code or 0
        words = self.relay.tail(rank)
        name = self.spec.who(rank)
        if code > 0:
            return code, f"{name} exited with code {code}", words
        if code == -signal.SIGABRT and any("EnforceNotMet" in w and "preamble" in w for w in words):
            mismatch = "layout mismatch: the groups reduce tensors of different sizes or in different order"
            return code, f"{name} aborted by gloo, {mismatch}", ()
        return code, f"{name} killed by {tree.signal_name(-code)}", words

    def _blame_torchrun(self) -> tuple[int, str, tuple[str, ...]]:
        code = self._agent_code if self._agent_code is not None else -signal.SIGKILL
        how = f"killed by {tree.signal_name(-code)}" if code < 0 else f"ended with code {code}"
        if self.spec.bare:
            return code, f"{self.spec.who(0)} {how}", self.relay.tail(0)
        when = "" if self._workers else " before a worker started"
        agent = self._agent.title if isinstance(self._agent, Forked) else "torchrun"
        return code or 1, f"{agent} {how}{when}", tuple(self._agent_words()) if code > 0 else ()

    def _learn_from_torchrun(self) -> None:
        """Codes of workers that torchrun collected before we looked, from the report it writes when one failed."""
        unknown = {w.pid: w for w in self._workers.values() if w.gone and w.code is None}
        if not unknown or self._agent_code == 0:
            return
        text = "\n".join(self._agent_words(1000))
        for found in re.finditer(r"exitcode\s*:\s*(-?\d+)\s*\(pid:\s*(\d+)\)", text):
            worker = unknown.get(int(found[2]))
            if worker is not None:
                worker.code = int(found[1])

    def _agent_words(self, lines: int = 20) -> list[str]:
        text = self._agent_log.read_text("utf-8", "replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]

    def _committed(self, pid: int) -> bool:
        """Whether that worker wrote a commit into its event file."""
        if self.spec.run_dir is None:
            return False
        for path in self.spec.run_dir.glob(f"events/*-{pid}.jsonl"):
            with open(path, "rb") as f:
                if b'"event":"commit"' in f.read(_EVENTS_READ):
                    return True
        return False
