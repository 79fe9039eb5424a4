"""Processes of one host: who descends from whom, how they ended, and making sure that none is left. Linux.

A supervisor is its group's *sub-reaper*: a process whose parent dies becomes the supervisor's own child, whatever
session it has moved to, so `descendants` always finds the whole group.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Collection

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Orphans below this process become its children from now on."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third (the state) on; None if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            # the second field is the program's name in parentheses and may hold anything, also ") "
            return f.read().rpartition(b")")[2].decode("ascii").split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def state(pid: int) -> str:
    """The letter of proc(5): R, S, D, T, t, Z, X, ...; empty: the process is gone."""
    stat = _stat(pid)
    return "" if stat is None else stat[0]


def turns(pid: int) -> int:
    """How often the process's first thread has left a processor. It grows whenever the process goes on after a stop."""
    try:
        with open(f"/proc/{pid}/status") as f:
            return sum(int(line.split()[1]) for line in f if "voluntary_ctxt_switches" in line)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def is_alive(pid: int) -> bool:
    """Whether the process is there; a zombie is not."""
    return state(pid) not in ("", "Z", "X")


def descendants(root: int, keep: Collection[int] = ()) -> list[int]:
    """Pids below `root`, zombies included, in no order; without those to `keep` and what is below them."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = _stat(int(name))
            if stat is not None:
                children.setdefault(int(stat[1]), []).append(int(name))
    found: list[int] = []
    queue = [root]
    while queue:
        below = [pid for pid in children.get(queue.pop(), []) if pid not in keep]
        found += below
        queue += below
    return found


def usage(roots: Collection[int]) -> tuple[float, int, dict[int, float]]:
    """Of these processes and all below them: seconds of a processor, children that have ended included; bytes read and
    written; and of each thread the seconds for which it ran or was ready to. Those that can't be looked at count nothing."""
    used = moved = 0.0
    ready: dict[int, float] = {}
    for pid in {*roots, *(below for root in roots for below in descendants(root))}:
        stat = _stat(pid)
        if stat is not None:
            used += sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK")  # utime, stime, cutime, cstime
        ready |= _ready(pid)
        try:
            with open(f"/proc/{pid}/io", "rb") as f:
                moved += sum(int(line.split()[1]) for line in f if line.startswith((b"rchar", b"wchar")))
        except OSError:
            pass
    return used, int(moved), ready


def _ready(pid: int) -> dict[int, float]:
    """Seconds for which each thread had a processor or was ready for one; empty: the kernel doesn't tell."""
    found = {}
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat", "rb") as f:
                ran, waited = f.read().split()[:2]
            found[int(task)] = (int(ran) + int(waited)) / 1e9
    except (OSError, ValueError):  # a thread has ended meanwhile: the next look will show the rest
        pass
    return found


def reap() -> dict[int, int]:
    """Collect every child that has ended: pid -> exit code or -signal."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def send(pids: list[int], number: int) -> None:
    """Signal these processes; those that are gone are skipped."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def kill_descendants(timeout: float = 5.0, keep: Collection[int] = ()) -> dict[int, int]:
    """SIGKILL everything below this process, but those to `keep`, until nothing is left; what was collected.

    The wait is bounded: a process in uninterruptible sleep (a dead disk or driver) can't be killed by anybody.
    """
    ended: dict[int, int] = {}
    deadline = time.monotonic() + timeout
    while True:
        below = descendants(os.getpid(), keep)
        send(below, signal.SIGKILL)
        ended |= reap()
        if not below or time.monotonic() > deadline:
            return ended
        _await_end(below, min(0.5, timeout))
        collected = reap()  # so that the next look finds nothing
        ended |= collected
        if not collected:  # zombies of a parent that is slow to die itself
            time.sleep(0.002)


def _await_end(pids: list[int], timeout: float) -> None:
    """Until all of these have ended, or a short time is over. A look at the whole of /proc costs more than this."""
    deadline = time.monotonic() + timeout
    for pid in pids:
        fd = open_pidfd(pid)
        if fd is None:  # it has gone, or this is an old kernel
            time.sleep(0.002)
            continue
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
        os.close(fd)


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None if it has gone, or the kernel has none (< 5.3)."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def when_parent_dies(parent: int | None, action: Callable[[], None]) -> None:
    """Call `action` on a thread of its own when our parent process dies; at once if `parent` (a pid) isn't our parent.

    PR_SET_PDEATHSIG is tied to the *thread* that started us and would fire when a launcher's worker thread ends,
    so the process itself is watched.
    """
    now = os.getppid()
    if parent is not None and now != parent:
        action()
        return
    if now == 0:  # our parent lives in another pid namespace: we are a container's first process
        return
    pidfd = open_pidfd(now)

    def watch() -> None:
        if pidfd is not None:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            poller.poll()
            os.close(pidfd)
        while os.getppid() == now:  # only without pidfd: four looks a second
            time.sleep(0.25)
        action()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
