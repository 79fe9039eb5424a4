"""Shim that becomes another program, which dies with its parent. Run by file path; uses the standard library only.

    python shim.py server PARENT PROGRAM [ARG...]               run the program, and do nothing else
    python shim.py worker PARENT RANK FOLDER SCRIPT [ARG...]    run a worker of a group: the user's Python script
    python shim.py program PARENT 0 FOLDER PROGRAM [ARG...]     run a worker that is not a Python script

PARENT is a pid. Linux kills a process when its parent dies if the process asked for that (PR_SET_PDEATHSIG); the request
survives ``execve``. Without it a ``kill -9`` of the supervisor would leave a worker training, because a worker has a
session of its own. A worker sends its output to the supervisor by named pipes (FOLDER/RANK.out and .err).
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Ask for a SIGKILL when `parent` dies. Kill this process at once if it is dead already: the request came too late."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def speak_into(rank: int, folder: str) -> None:
    """Connect stdout and stderr to the supervisor's named pipes."""
    for fd, name in ((1, "out"), (2, "err")):
        pipe = os.open(f"{folder}/{rank}.{name}", os.O_WRONLY)
        os.dup2(pipe, fd)
        os.close(pipe)


def reset_signals() -> None:
    """Set signal handlers to the default: the job's launcher (nohup) or the supervisor may ignore some signals."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def become(command: list[str]) -> None:
    try:
        os.execvp(command[0], command)
    except OSError as e:
        sys.exit(f"{command[0]} can't be started ({e.strerror}).")


if __name__ == "__main__":
    kind, parent, words = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    die_with(parent)
    if kind == "server":
        os.execvp(words[0], words)
    speak_into(int(words[0]), words[1])
    reset_signals()
    become(words[2:] if kind == "program" else [sys.executable, "-u", *words[2:]])
