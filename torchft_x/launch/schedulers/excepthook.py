"""Reports errors that end `torchx run` while it submits or watches our job, in one sentence instead of TorchX's traceback.

A component is called inside TorchX's command, so it can set `sys.excepthook`. Known errors are an unreachable Docker, a
missing sbatch or kubeconfig, and Ctrl-C. All others stay tracebacks, and so does every error with
TORCHFT_X_LOG_LEVEL=debug. TorchX itself reports errors from before the component's call: an unknown scheduler or, on the
nightly line, an unknown -cfg option.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple

from torchft_x import env
from torchft_x.errors import ConfigError, first_line

_MISTAKE = 2  # exit code of an error that a retry would repeat
_LOG_THREADS = ("get_logs", "print_log_lines")  # functions of TorchX's, in the names of their threads
_speaking = threading.Lock()


@dataclass(frozen=True)
class SchedulerArguments:
    """Scheduler and its options, from the command line of `torchx run`."""

    scheduler: str | None
    """Name of the scheduler; None if neither the command line nor .torchxconfig has one."""
    options: tuple[str, ...]
    """Names of the scheduler's options, after -cfg."""
    values: tuple[str, ...] = field(default=(), compare=False)
    """Values of those options, as text."""


class LastWord(NamedTuple):
    sentence: str
    code: int


def read_command(words: Sequence[str]) -> SchedulerArguments:
    """Return the scheduler and its options from the words after ``run``. Words after the component's name are ignored."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-s", "--scheduler")
    parser.add_argument("-cfg", "--scheduler_args", default="")
    for name in ("--workspace", "--parent_run_id"):
        parser.add_argument(name)
    for name in ("--dryrun", "--wait", "--log", "--tee_logs", "--json"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("component", nargs=argparse.REMAINDER)
    try:
        known, _ = parser.parse_known_args(list(words))
    except SystemExit:  # TorchX's own parser has accepted it
        return SchedulerArguments(None, ())
    # TorchX cuts `a=1,2,b=3` at the last comma in front of each "="
    first, *parts = known.scheduler_args.split("=")
    cut = [part.rpartition(",") for part in parts[:-1]]
    names = [first.rpartition(",")[2], *(name for _, _, name in cut)][: len(parts)]
    values = [*(value for value, _, _ in cut), *parts[-1:]]
    found = [(n.strip(), v.strip()) for n, v in zip(names, values, strict=True) if n.strip()]
    return SchedulerArguments(known.scheduler, tuple(n for n, _ in found), tuple(v for _, v in found))


def check_options(
    asked: SchedulerArguments, scheduler: str, known: Collection[str], flags: Collection[str] = ()
) -> None:
    """Raise `ConfigError` for an unknown option, or for one of `flags` with a value other than True or False.

    TorchX 0.7.0 ignores unknown options. It takes ``yes`` for False, and its nightly line takes ``yes`` for True.
    """
    for name in asked.options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(known))}."
            raise ConfigError(f"-cfg {name}=...: the scheduler {scheduler} has no such option; {hint}")
    for name, value in zip(asked.options, asked.values, strict=False):
        if name in flags and value.lower() not in ("true", "false"):
            raise ConfigError(f"-cfg {name}={value}: write True or False.")


def explain(error: BaseException, asked: SchedulerArguments) -> LastWord | None:
    """Return the sentence and the exit code for an error that ended the command, or None for an unknown error."""
    kind = type(error).__name__
    if isinstance(error, KeyboardInterrupt) or kind == "SignalException":
        number = int(getattr(error, "sigval", signal.SIGINT))
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        return LastWord(f"stopped by {name}; a job on this machine has ended with it.", 128 + number)
    chain = list(_chain(error))
    packages = {name.partition(".")[0] for e in chain for name in _modules(e.__traceback__)}
    if any(type(e).__module__.startswith("docker.") for e in chain):
        return LastWord(_docker(error, asked), _MISTAKE)
    if isinstance(error, FileNotFoundError) and error.filename in ("sbatch", "squeue", "sacct"):
        return LastWord(
            f"Slurm's {error.filename} is not on this machine's PATH; submit where it is, or choose another scheduler with "
            "-s.",
            _MISTAKE,
        )
    if isinstance(error, subprocess.CalledProcessError) and error.cmd and error.cmd[0] == "sbatch":
        return LastWord(f"Slurm took no job: sbatch ended with {error.returncode}, its own words are above.", 1)
    if "kubernetes" in packages:
        return LastWord(_kubernetes(error), _MISTAKE)
    return None


def _docker(error: BaseException, asked: SchedulerArguments) -> str:
    reason = first_line(error)
    if asked.scheduler is None:
        return (
            "neither -s nor a .torchxconfig here names a scheduler, so TorchX took local_docker, and Docker can't be used "
            f"({reason}). For a job on this machine: torchx run -s local_cwd COMPONENT ..."
        )
    return (
        f"Docker can't be used ({reason}): is it running, may you use it, does DOCKER_HOST name it? If the image holds "
        'your code, --workspace="" makes TorchX build none.'
    )


def _kubernetes(error: BaseException) -> str:
    status = getattr(error, "status", None)
    if status:
        return f"Kubernetes refused the request: {status} {getattr(error, 'reason', '')}".rstrip() + "."
    files = (env.read(env.KUBECONFIG) or os.path.expanduser("~/.kube/config")).split(os.pathsep)
    if not any(os.path.exists(path) for path in files):
        return f"no cluster is configured here: {' and '.join(files)} does not exist; set {env.KUBECONFIG} to yours."
    return f"the cluster of {' and '.join(files)} can't be reached: {first_line(error).rstrip('.')}."


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _modules(traceback: TracebackType | None) -> Iterator[str]:
    while traceback is not None:
        yield str(traceback.tb_frame.f_globals.get("__name__", ""))
        traceback = traceback.tb_next


def in_command(name: str) -> bool:
    """Return whether this process is TorchX's command of that name."""
    return "torchx.cli.main" in sys.modules and sys.argv[1:2] == [name]


# --- in TorchX's command ----------------------------------------------------------------------------------------------


def prepare() -> None:
    """Check the scheduler's options and install the excepthook, if this process is `torchx run`. Raise `ConfigError`."""
    if not in_command("run"):
        return
    # If our starter ignores SIGCHLD, the kernel keeps no exit codes, and TorchX takes each role for one that succeeded.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked = read_command(sys.argv[2:])
    if asked.scheduler is None:
        asked = dataclasses.replace(asked, scheduler=_configured_scheduler())
    usual = sys.excepthook

    def last_word(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        said = None if env.read(env.LOG_LEVEL) == "debug" else explain(error, asked)
        if said is None:
            usual(kind, error, traceback)
            return
        print(f"torchft_x: {said.sentence}", file=sys.stderr, flush=True)
        raise SystemExit(said.code)  # the only way to set the exit code from an excepthook

    sys.excepthook = last_word
    if env.read(env.LOG_LEVEL) != "debug":
        threading.excepthook = thread_hook(threading.excepthook)
    if asked.options and asked.scheduler:
        known = _known_options(asked.scheduler)
        check_options(asked, asked.scheduler, known, [name for name, kind in known.items() if kind is bool])


def thread_hook(usual: Callable[[Any], object]) -> Callable[[Any], None]:
    """Return a `threading.excepthook` that says in one sentence, once, that TorchX's threads can't show the output any more.

    They read files that TorchX deletes when Ctrl-C has ended the job.
    """
    ended = threading.Event()

    def hook(args: Any) -> None:
        if not any(name in args.thread.name for name in _LOG_THREADS):
            usual(args)
        elif not ended.is_set():
            ended.set()
            print(f"torchft_x: no more output of the job is shown ({args.exc_value}).", file=sys.stderr, flush=True)

    return hook


def refused(sentence: str) -> SystemExit:
    """Print the sentence on stderr, and return the exception that ends the command with exit code 2.

    `torchx log` reads each replica on its own thread, which would show a subclass as a traceback and end with 0. On such a
    thread, end the process at once.
    """
    end = SystemExit(f"torchft_x: {sentence}")
    end.code = _MISTAKE
    with _speaking:
        print(end, file=sys.stderr, flush=True)
        if in_command("log") and threading.current_thread() is not threading.main_thread():
            sys.stdout.flush()
            os._exit(_MISTAKE)
    return end


def end_quietly() -> None:
    """Let Ctrl-C end this process without a message, for commands that only show something."""
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not isinstance(error, KeyboardInterrupt):
            usual(kind, error, traceback)
            return
        raise SystemExit(128 + signal.SIGINT)

    sys.excepthook = hook


def _configured_scheduler() -> str | None:
    """Return the scheduler in .torchxconfig, or None if it has none and TorchX uses its own default."""
    from torchx.runner.config import get_config

    found = get_config("cli", "run", "scheduler")
    return None if found is None else str(found)


def _known_options(scheduler: str) -> dict[str, type]:
    from torchx.schedulers import get_scheduler_factories

    options = get_scheduler_factories()[scheduler]("torchft_x").run_opts()
    return {str(name): option.opt_type for name, option in options}
