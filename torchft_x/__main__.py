"""Command ``torchft_x`` with its subcommands (``lighthouse``, ``supervise`` ...), also as ``python -m torchft_x``.

Each subcommand is imported only when it runs. Only `checkpoint` imports torch.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import select
import signal
import sys

from torchft_x import env
from torchft_x._version import __version__
from torchft_x.errors import TorchftXError

_USAGE = f"""torchft_x {__version__}

    torchft_x demo [--steps N]                           train with two groups on this machine, and kill one
    torchft_x lighthouse --min_replicas N [...]          the service that decides who trains together
    torchft_x supervise --group G --groups N [...] -- SCRIPT [ARG...]
                                                         run one replica group and restart it when it dies
    torchft_x accompany --name NAME [...] -- PROGRAM [ARG...]
                                                         run a program beside the groups, as long as the job lives
    torchft_x status [RUN_DIR|ADDRESS|JOB] [--json]      what the groups of a run do; the newest run by default
    torchft_x kill|drain|resume GROUP [RUN_DIR|ADDRESS|JOB]
                                                         end a group and start it again; have it leave and rest; start it
    torchft_x pause|resume [RUN_DIR|ADDRESS|JOB]         have all groups leave and rest; start them where they stopped
    torchft_x dumps RUN_DIR [N]                          what was collected when groups died or hung, and what it says
    torchft_x report [RUN_DIR|LOGS|JOB] [--against OTHER_RUN]
                                                         what a run did and what its failures cost, as one HTML file
    torchft_x chaos [RUN_DIR|JOB] --mean S|--at LIST [...]
                                                         kill, stop and drain parts of a running job
    torchft_x clean [FOLDER] [--days N] [--yes]          remove the directories of old runs
    torchft_x checkpoint ls|verify|export|import [...]   what is saved at a URL; as PyTorch's or safetensors' files, and back
    torchft_x cancel RUN_DIR|JOB                         end a job of local_ft, slurm_ft or kubernetes_ft
    torchft_x scale --replicas N RUN_DIR|JOB             give such a job more groups, or fewer
    torchft_x log JOB/ROLE/REPLICA                       what a replica of a job of kubernetes_ft has printed, in all its pods
    torchft_x doctor [--lighthouse ADDRESS] [--run_dir DIR] [--torch] [--json]
                                                         look at this machine and say what to do

`torchft_x COMMAND --help` tells more. A job is started with `torchx run -s local_ft ft.ddp --script SCRIPT`.
"""

_COMMANDS = {  # subcommand -> module:function, and arguments of the function before the command line's words
    "demo": "launch.demo:main",
    "lighthouse": "launch.cli:lighthouse",
    "supervise": "launch.cli:supervise",
    "accompany": "launch.cli:accompany",
    "status": "launch.status.commands:status",
    "kill": "launch.status.commands:order kill",
    "drain": "launch.status.commands:order drain",
    "pause": "launch.status.commands:order pause",
    "resume": "launch.status.commands:order resume",
    "dumps": "launch.cli:dumps",
    "report": "launch.run_commands:report",
    "chaos": "launch.run_commands:chaos",
    "clean": "launch.run_commands:clean",
    "checkpoint": "transfer.convert:main",
    "cancel": "launch.run_commands:cancel",
    "scale": "launch.run_commands:scale",
    "log": "launch.kubernetes.commands:log",
    "slurm-again": "launch.slurm.watch.script_commands:again",
    "slurm-end": "launch.slurm.watch.script_commands:end",
    "slurm-watch": "launch.slurm.watch.watcher:main",
    "keep-job": "launch.keeper.keeper:main",
    "doctor": "launch.cli:doctor",
}


_BROKEN_PIPE = 128 + 13
"""Exit code after the reader of the output has gone (``| head``), as of a program that SIGPIPE ends."""


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    Mostly 0 is done, 1 failed, and 2 a usage error or another `TorchftXError` (`exit_code`), with one sentence on stderr. A
    supervisor also returns codes of its script. 141: the reader of the output has gone.
    """
    try:
        try:
            if argv is None:  # not in a caller's process
                _reset_signals()
            return _run(_typed() if argv is None else argv)
        finally:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
    except BrokenPipeError:
        unread = [fd for fd in (1, 2) if _is_unread(fd)]
        if not unread:
            raise  # the broken pipe is a connection of the command
        _discard(unread)
        return _BROKEN_PIPE
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            if e.filename is None:
                raise
            print(f"torchft_x: {e.filename}: {e.strerror}.", file=sys.stderr, flush=True)
            return 1
        with contextlib.suppress(OSError):
            print(f"torchft_x: the output or a file can't be written: {e.strerror}.", file=sys.stderr, flush=True)
        _discard([1, 2])
        return 1


def _discard(fds: list[int]) -> None:
    """Discard what is still buffered for these descriptors, so that Python's exit does not fail with it."""
    for fd in fds:
        os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def _reset_signals() -> None:
    """Unblock all signals, and SIGCHLD's default: our starter may have blocked or ignored them, and both survive exec.

    The kernel keeps no exit code of a child whose parent ignores SIGCHLD. An ignored SIGHUP stays ignored (nohup).
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _typed() -> list[str]:
    """Return the command line's words, with ``lighthouse`` first if called as torchft_lighthouse (docs/torchft.md)."""
    linked = os.path.basename(sys.argv[0]) == "torchft_lighthouse"
    return ["lighthouse", *sys.argv[1:]] if linked else sys.argv[1:]


def _is_unread(fd: int) -> bool:
    """Return whether the descriptor is a pipe or socket whose readers have gone."""
    waiting = select.poll()
    waiting.register(fd, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in waiting.poll(0))


def _run(words: list[str]) -> int:
    if words and words[0] in _COMMANDS:
        env.leave_outer_job()
        module, _, call = _COMMANDS[words[0]].partition(":")
        name, *before = call.split()
        try:
            return int(getattr(importlib.import_module(f"torchft_x.{module}"), name)(*before, words[1:]))
        except TorchftXError as e:
            print(f"torchft_x {words[0]}: {e}", file=sys.stderr)
            return e.exit_code
    if words[:1] in (["-V"], ["--version"]):
        print(f"torchft_x {__version__}")
        return 0
    if words[:1] in ([], ["-h"], ["--help"]):
        print(_USAGE, end="")
        return 0 if words else 2
    *known, last = (name for name in _COMMANDS if name in _USAGE)  # other commands are internal
    print(
        f"torchft_x: there is no command {words[0]!r}; the commands are {', '.join(known)} and {last}.", file=sys.stderr
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
