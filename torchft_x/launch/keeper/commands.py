"""``torchft_x cancel`` and ``torchft_x scale`` for a job of local_ft.

They reach the keeper by signals, which only its own user may send, and by files in the run directory.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from torchft_x.atomic_file import replace_file
from torchft_x.errors import ConfigError
from torchft_x.launch.keeper import record
from torchft_x.launch.keeper.plan import folder
from torchft_x.launch.keeper.record import JobRecord
from torchft_x.timing import POLL, TIMING


def end(run_dir: str) -> str:
    """End the job and return how it has ended, as a sentence. Raise `ConfigError` or `UnreadableError`."""
    found = record.read(run_dir)
    if found.over:
        return f"The job {found.app_id} has ended already: {found.state}. {found.reason}".rstrip()
    send(found, signal.SIGTERM)
    found = _wait(run_dir, found.app_id, lambda now: now.over, TIMING.cancel_end, "end")
    return f"The job {found.app_id} has ended: {found.state}."


def resize(run_dir: str, wanted: int) -> tuple[str, int]:
    """Change the number of groups. Return the app id and the former number. Raise `ConfigError` or `UnreadableError`."""
    found = record.read(run_dir)
    if found.over:
        raise ConfigError(f"the job {found.app_id} has ended: {found.state}.")
    ticket = secrets.token_hex(8)
    path = folder(found.run_dir) / "wanted.json"
    try:
        replace_file(path, json.dumps({"ticket": ticket, "replicas": wanted}))
    except OSError as e:
        raise ConfigError(f"{path} can't be written ({e.strerror}).") from None
    send(found, signal.SIGUSR1)
    before = found.groups
    found = _wait(
        run_dir, found.app_id, lambda now: now.over or now.answer[0] == ticket, TIMING.keeper_answer, "answer"
    )
    if found.answer[0] != ticket:
        raise ConfigError(f"the job {found.app_id} has ended: {found.state}.")
    if found.answer[1]:
        raise ConfigError(found.answer[1])
    return found.app_id, before


def send(job: JobRecord, number: int) -> None:
    """Send a signal to the job's keeper, which `record.read` has just found alive.

    Raise `ConfigError` if the job is on another host or another user's, or if the process is not its keeper.
    """
    if job.host != socket.gethostname():
        raise ConfigError(f"the job {job.app_id} runs on {job.host}; give the command there.")
    try:
        words = Path(f"/proc/{job.keeper.pid}/cmdline").read_bytes().split(b"\0")
        if b"keep-job" not in words or os.fsencode(job.app_id) not in words:  # another user may have written the file
            raise ConfigError(f"process {job.keeper.pid} is not the keeper of the job {job.app_id}; it gets no signal.")
        os.kill(job.keeper.pid, number)
    except (ProcessLookupError, FileNotFoundError):  # the keeper has just ended, which its record now shows
        pass
    except PermissionError:
        raise ConfigError(f"the job {job.app_id} is another user's: you may not signal its keeper.") from None


def _wait(run_dir: str, app_id: str, done: Callable[[JobRecord], bool], seconds: float, what: str) -> JobRecord:
    deadline = time.monotonic() + seconds
    while True:
        found = record.read(run_dir, app_id)
        if done(found):
            return found
        if time.monotonic() > deadline:
            raise ConfigError(
                f"the job {app_id} did not {what} within {seconds:g} s; its keeper is process {found.keeper.pid}."
            )
        time.sleep(POLL)
