"""The user's command that decides whether a host may run a group (`--health`), and the nodes on which it has failed.

The group's supervisor runs it before each attempt, and records a failure in a folder that nodes share, a file for each node.
Its lines are the name of a part's start and the reason. slurm_ft excludes these nodes from all later submissions.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from torchft_x.launch.job.states import HEALTH_FAILED
from torchft_x.launch.process.process_tree import signal_name
from torchft_x.timing import POLL, TIMING

_TAIL = 4096  # bytes at the end of the output from which lines are quoted
_LINES, _QUOTED = 3, 400  # most lines and characters that are quoted
UNHEALTHY = "unhealthy"
"""Name of the folder, beside the parts' fence files."""
UNHEALTHY_HOST = 75
"""Exit code of a supervisor whose group is to be started on another node (EX_TEMPFAIL)."""


def failure(
    command: str,
    environ: Mapping[str, str],
    folder: Path,
    stopped: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], object] = time.sleep,
) -> str:
    """Run the command by the shell. Return why this host must not be used, as a clause; '' if it may be used.

    The command is killed at its deadline, and when `stopped` returns True; the result is then ''. Its output goes to a file
    in `folder`.
    """
    output = folder / "health"
    with output.open("wb") as out:
        process = subprocess.Popen(
            ["sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            start_new_session=True,
        )
    until = time.monotonic() + TIMING.health
    while (code := process.poll()) is None and time.monotonic() < until and not stopped():
        sleep(POLL)
    if code is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.returncode = -signal.SIGKILL  # collected by process_tree.reap: a hung driver may keep it from ending
        if stopped():
            return ""
    elif code == 0:
        return ""
    how = f"failed ({signal_name(-code) if code < 0 else f'exit code {code}'})" if code is not None else ""
    said = _last_lines(output)
    return f"{HEALTH_FAILED} {how or f'did not end within {TIMING.health:g} s'} on {socket.gethostname()}" + (
        f": {said}" if said else ""
    )


def _last_lines(path: Path) -> str:
    """Return the last lines of a file as one line."""
    with path.open("rb") as f:
        f.seek(max(0, os.fstat(f.fileno()).st_size - _TAIL))
        lines = [line.strip() for line in f.read().decode("utf-8", "replace").splitlines()]
    return "; ".join([line for line in lines if line][-_LINES:])[-_QUOTED:].rstrip(".")


def report_unhealthy(folder: Path, node: str, start: str, sentence: str) -> None:
    """Record that the job must not use a node, as the start of a part with this name has found. Raise `OSError`."""
    (folder / UNHEALTHY).mkdir(exist_ok=True)
    with (folder / UNHEALTHY / node).open("a", encoding="utf-8") as f:
        f.write(f"{start} {sentence}\n")
