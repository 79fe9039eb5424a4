"""Becomes another program, and dies with whoever started it. Run by file path, standard library only.

    python shim.py agent PARENT PROGRAM [ARG...]               the supervisor's child: torchrun
    python shim.py worker AGENT RANK FOLDER SCRIPT [ARG...]    torchrun's child: the user's script
    python shim.py program AGENT 0 FOLDER PROGRAM [ARG...]     the same for a program that is no Python script

Linux kills a process by itself when its parent dies, if it asked for that (PR_SET_PDEATHSIG); the request survives
``execve``. torchrun gives each of its workers a session of its own and does not ask, so a ``kill -9`` of torchrun
or of the supervisor would leave them training. A worker also tells the supervisor its pid (FOLDER/pids) and sends
its output there (FOLDER/RANK.out and .err), apart from torchrun's own.

PARENT and AGENT are pids; the agent's is filled in for the word ``@agent@`` of its own command.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """SIGKILL for us when `parent` dies; at once if it is dead already (the request would come too late)."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def agent(parent: int, command: list[str]) -> None:
    die_with(parent)
    command = [str(os.getpid()) if word == "@agent@" else word for word in command]
    os.execvp(command[0], command)


def announce(agent: int, rank: int, folder: str) -> None:
    if agent != os.getpid():  # without torchrun the agent has become the worker: it has asked already
        die_with(agent)
    for fd, name in ((1, "out"), (2, "err")):
        pipe = os.open(f"{folder}/{rank}.{name}", os.O_WRONLY)
        os.dup2(pipe, fd)
        os.close(pipe)
    pids = os.open(f"{folder}/pids", os.O_WRONLY)
    os.write(pids, f"{rank} {os.getpid()}\n".encode())
    os.close(pids)


def become(command: list[str]) -> None:
    try:
        os.execvp(command[0], command)
    except OSError as e:
        sys.exit(f"{command[0]} can't be started ({e.strerror}).")


if __name__ == "__main__":
    kind, words = sys.argv[1], sys.argv[2:]
    if kind == "agent":
        agent(int(words[0]), words[1:])
    else:
        announce(int(words[0]), int(words[1]), words[2])
        become(words[3:] if kind == "program" else [sys.executable, "-u", *words[3:]])
