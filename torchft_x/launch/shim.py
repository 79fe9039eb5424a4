"""Becomes another program, and dies with whoever started it. Run by file path, standard library only.

    python shim.py agent PARENT_PID PROGRAM [ARG...]       the supervisor's child: torchrun
    python shim.py worker FOLDER SCRIPT [ARG...]           torchrun's child: the user's script

Linux kills a process by itself when its parent dies, if it asked for that (PR_SET_PDEATHSIG); the request survives
``execve``. torchrun gives each of its workers a session of its own and does not ask, so a ``kill -9`` of torchrun
or of the supervisor would leave them training. A worker also tells the supervisor its pid (FOLDER/pids) and sends
its output there (FOLDER/<local rank>.out and .err), apart from torchrun's own.

This file reads `os.environ` itself: it must not import the package (torchrun starts it by path, and it has to be
quick), and what it reads is torchrun's LOCAL_RANK and its own AGENT_PID, nothing a user sets.
"""

import ctypes
import os
import signal
import sys

AGENT_PID = "TORCHFT_X_AGENT_PID"  # set by the agent's shim for the workers' shims
PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """SIGKILL for us when `parent` dies; at once if it is dead already (the request would come too late)."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def agent(parent: int, command: list[str]) -> None:
    die_with(parent)
    os.environ[AGENT_PID] = str(os.getpid())
    os.execvp(command[0], command)


def worker(folder: str, command: list[str]) -> None:
    parent = int(os.environ[AGENT_PID])
    if parent != os.getpid():  # without torchrun the agent has become the worker: it has asked already
        die_with(parent)
    rank = os.environ.get("LOCAL_RANK", "0")
    for fd, name in ((1, "out"), (2, "err")):
        pipe = os.open(f"{folder}/{rank}.{name}", os.O_WRONLY)
        os.dup2(pipe, fd)
        os.close(pipe)
    pids = os.open(f"{folder}/pids", os.O_WRONLY)
    os.write(pids, f"{rank} {os.getpid()}\n".encode())
    os.close(pids)
    os.execv(sys.executable, [sys.executable, "-u", *command])


if __name__ == "__main__":
    if sys.argv[1] == "agent":
        agent(int(sys.argv[2]), sys.argv[3:])
    else:
        worker(sys.argv[2], sys.argv[3:])
