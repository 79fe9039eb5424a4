"""Reports errors that end `torchx run` while it submits or watches our job, in one sentence instead of TorchX's traceback.

A component is called inside TorchX's command, so it can set `sys.excepthook`. Known errors are an unreachable Docker, a
missing sbatch or kubeconfig, and Ctrl-C. All others stay tracebacks, and so does every error with
TORCHFT_X_LOG_LEVEL=debug. TorchX itself reports errors from before the component's call: an unknown scheduler or, on the
nightly line, an unknown -cfg option.
"""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from torchft_x import env
from torchft_x.errors import ConfigError, first_line

_MISTAKE = 2  # exit code of an error that a retry would repeat
_LOG_THREADS = ("get_logs", "print_log_lines")  # functions of TorchX's, in the names of their threads
_speaking = threading.Lock()


def read_command(words: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """Return the scheduler, None if none is named, and its options, from the words after ``run``.

    Words after the component's name are ignored.
    """
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
        return None, {}
    # TorchX cuts `a=1,2,b=3` at the last comma in front of each "="
    name, *parts = known.scheduler_args.split("=")
    options = {}
    for last, part in enumerate(parts, start=1 - len(parts)):
        value, _, following = part.rpartition(",") if last else (part, "", "")
        options[name.rpartition(",")[2].strip()] = value.strip()
        name = following
    return known.scheduler, {name: value for name, value in options.items() if name}


def check_options(scheduler: str, options: Mapping[str, str], known: Mapping[str, type]) -> None:
    """Raise `ConfigError` for an unknown option, or for a boolean one with a value other than True or False.

    TorchX 0.7.0 ignores unknown options. It takes ``yes`` for False, and its nightly line takes ``yes`` for True.
    """
    for name, value in options.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(known))}."
            raise ConfigError(f"-cfg {name}=...: the scheduler {scheduler} has no such option; {hint}")
        if known[name] is bool and value.lower() not in ("true", "false"):
            raise ConfigError(f"-cfg {name}={value}: write True or False.")


def explain(error: BaseException, scheduler: str | None) -> tuple[str, int] | None:
    """Return the sentence and the exit code for an error that ended the command, or None for an unknown error."""
    kind = type(error).__name__
    if isinstance(error, KeyboardInterrupt) or kind == "SignalException":
        number = int(getattr(error, "sigval", signal.SIGINT))
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        return f"stopped by {name}; a job on this machine has ended with it.", 128 + number
    chain = list(_chain(error))
    packages = {name.partition(".")[0] for e in chain for name in _modules(e.__traceback__)}
    if any(type(e).__module__.startswith("docker.") for e in chain):
        return _docker(error, scheduler), _MISTAKE
    if isinstance(error, FileNotFoundError) and error.filename in ("sbatch", "squeue", "sacct"):
        where = "submit where it is, or choose another scheduler with -s."
        return f"Slurm's {error.filename} is not on this machine's PATH; {where}", _MISTAKE
    if isinstance(error, subprocess.CalledProcessError) and error.cmd and error.cmd[0] == "sbatch":
        return f"Slurm took no job: sbatch ended with {error.returncode}, its own words are above.", 1
    return (_kubernetes(error), _MISTAKE) if "kubernetes" in packages else None


def _docker(error: BaseException, scheduler: str | None) -> str:
    reason = first_line(error)
    if scheduler is None:
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
    scheduler, options = read_command(sys.argv[2:])
    if scheduler is None:
        from torchx.runner.config import get_config

        scheduler = get_config("cli", "run", "scheduler")  # None: TorchX uses its own default
    usual = sys.excepthook

    def last_word(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        said = explain(error, scheduler)
        if said is None:
            usual(kind, error, traceback)
            return
        print(f"torchft_x: {said[0]}", file=sys.stderr, flush=True)
        raise SystemExit(said[1])  # the only way to set the exit code from an excepthook

    if env.read(env.LOG_LEVEL) != "debug":
        sys.excepthook = last_word
        threading.excepthook = thread_hook(threading.excepthook)
    if options and scheduler:
        from torchx.schedulers import get_scheduler_factories

        known = get_scheduler_factories()[scheduler]("torchft_x").run_opts()
        check_options(scheduler, options, {str(name): option.opt_type for name, option in known})


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
