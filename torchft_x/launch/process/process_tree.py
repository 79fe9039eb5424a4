"""Process tree of one host: find a process's descendants, collect their exit codes, kill them all. Linux only.

A supervisor is its group's *sub-reaper*: a process whose parent dies becomes the supervisor's own child, in any session,
so `descendants` always finds the whole group.
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
    """Make this process the sub-reaper: orphans below it become its children from now on."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third (the state) on, or None if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            # The second field is the program's name in parentheses, which may hold anything, also ") ".
            return f.read().rpartition(b")")[2].decode("ascii").split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def state(pid: int) -> str:
    """Return the process's state as a letter of proc(5): R, S, D, T, t, Z, X, ...; '' if the process is gone."""
    stat = _stat(pid)
    return "" if stat is None else stat[0]


def ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot, or None if it is gone or a zombie."""
    stat = _stat(pid)
    return None if stat is None or stat[0] in ("Z", "X") else int(stat[19])


def turns(pid: int) -> int:
    """Return the number of context switches of the process's first thread. It grows when the process goes on after a stop."""
    try:
        with open(f"/proc/{pid}/status") as f:
            return sum(int(line.split()[1]) for line in f if "voluntary_ctxt_switches" in line)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def is_alive(pid: int) -> bool:
    """Return whether the process is alive; a zombie is not."""
    return state(pid) not in ("", "Z", "X")


def descendants(root: int, keep: Collection[int] = ()) -> list[int]:
    """Return the pids below `root` in no order, zombies included, but without those in `keep` and their descendants."""
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
    """Return the resources used so far by these processes and their descendants.

    Returns the CPU seconds, those of ended children included; the bytes read and written; and for each thread id the
    seconds for which the thread ran or was ready to run. A process that can't be read counts nothing.
    """
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
    """Return, by thread id, the seconds for which a thread ran or was ready to run; empty if the kernel can't tell."""
    found = {}
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat", "rb") as f:
                ran, waited = f.read().split()[:2]
            found[int(task)] = (int(ran) + int(waited)) / 1e9
    except (OSError, ValueError):  # a thread has ended meanwhile: the next call will return the rest
        pass
    return found


def reap() -> dict[int, int]:
    """Collect every child that has ended, and return pid -> exit code or -signal."""
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
    """Send a signal to these processes; skip those that are gone."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def kill_descendants(timeout: float = 5.0, keep: Collection[int] = ()) -> dict[int, int]:
    """SIGKILL all descendants but those in `keep` until none is left, and return pid -> exit code or -signal.

    The wait is bounded: a process in uninterruptible sleep (a dead disk or driver) can't be killed.
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
        collected = reap()  # so that the next turn finds nothing
        ended |= collected
        if not collected:  # zombies of a parent that is slow to die itself
            time.sleep(0.002)


def _await_end(pids: list[int], timeout: float) -> None:
    """Wait until all of these processes have ended or the time is over. It costs less than reading all of /proc."""
    deadline = time.monotonic() + timeout
    for pid in pids:
        fd = open_pidfd(pid)
        if fd is None:  # the process is gone, or the kernel is too old
            time.sleep(0.002)
            continue
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
        os.close(fd)


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable when the process ends, or None if it is gone or the kernel is older than 5.3."""
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
        while os.getppid() == now:  # loops only without pidfd, four times a second
            time.sleep(0.25)
        action()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
