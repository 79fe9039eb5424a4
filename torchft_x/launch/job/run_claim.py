"""Claim of a run directory by one job, so that a second job is refused before it touches the first one's files.

The file ``claim`` in the run directory names a job. All roles of that job renew it, so that it outlives each of them;
the lighthouse marks it when the job is over. A role or a launcher that finds another job's claim decides whether that
job still runs. On the host where the claim was written it looks for processes of the job. On another host it watches
whether the claim is renewed. Clocks of two hosts are never compared, and no lock is needed, since a network file
system may have none.

A job is identified by TORCHX_JOB_ID, which stays the same when a role is restarted, also on another host. A process
without that variable claims nothing.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torchft_x import env, log_lines, net
from torchft_x.address_files import make_run_dir
from torchft_x.arguments import option
from torchft_x.atomic_file import replace_file
from torchft_x.errors import ConfigError
from torchft_x.json_values import from_json
from torchft_x.timing import POLL, TIMING

_LIMIT = 4096  # bytes of the file that are read
_ROLES = {b"lighthouse", b"supervise", b"accompany"}  # subcommands of torchft_x


@dataclass(frozen=True)
class PidScope:
    """Scope of process ids: one boot of a host, and one pid namespace."""

    host: str
    boot: str
    pids: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Content of a claim file."""

    job: str
    scope: PidScope
    local: bool
    """Whether all roles of the job run on that host."""
    beat: str
    """Random value, a new one at each renewal."""
    over: bool = False


class Verdict(enum.Enum):
    FREE = enum.auto()
    HELD = enum.auto()
    WATCH = enum.auto()
    """Undecided: the claim is held if it is renewed while it is watched."""


def judge(found: Entry | None, job: str, here: PidScope, roles: Callable[[str], Collection[int]]) -> Verdict:
    """Decide whether `job` may have the run directory now. `roles` returns the pids of a job's roles on this host."""
    if found is None or found.over or found.job == job:
        return Verdict.FREE
    if found.scope == here:
        if roles(found.job):
            return Verdict.HELD
        return Verdict.FREE if found.local else Verdict.WATCH
    rebooted = found.scope.host == here.host and found.scope.boot != here.boot
    return Verdict.FREE if found.local and rebooted else Verdict.WATCH


class RunClaim:
    """Claim of one role. Call `take` before anything is written to the run directory."""

    def __init__(self, run_dir: Path, environ: Mapping[str, str], *, local: bool = False) -> None:
        local = local or env.is_local_job(environ)
        self.path = run_dir / "claim"
        self._entry = Entry(job=env.read(env.TORCHX_JOB_ID, "", environ) or "", scope=_here(), local=local, beat="")
        self._ended = threading.Event()
        self.lost = ""  # why this role must end; set once

    def take(self, wait: Callable[[float], bool]) -> None:
        """Claim the run directory for this job, unless `wait(seconds)` returns that this role was asked to stop.

        Raise `ConfigError` if another job has the run directory, or if it can't be written.
        """
        if not self._entry.job:
            return
        try:
            make_run_dir(self.path.parent)
            while await_free(self.path, self._entry.job, wait):
                with _exclusive(self.path):
                    found = read(self.path)
                    if judge(found, self._entry.job, self._entry.scope, _roles_of) is Verdict.HELD:
                        continue
                    if found is None or found.over or found.job != self._entry.job:
                        self._renew()
                return
        except OSError as e:
            raise ConfigError(
                f"The run directory {self.path.parent} can't be written ({e.strerror}); see --run_dir."
            ) from None

    def keep(self, on_lost: Callable[[str], object]) -> None:
        """Start a thread that renews the claim, so that a hanging file system blocks only that thread.

        `on_lost` is called once, with a sentence, if another job has claimed the run directory.
        """
        if self._entry.job:
            threading.Thread(target=self._keep, args=(on_lost,), name="run-claim", daemon=True).start()

    def end(self, *, over: bool) -> None:
        """Stop renewing the claim. If the job is `over`, mark the claim so that another job may take it at once."""
        self._ended.set()
        if over and self._entry.job and not self.lost:
            self._entry = replace(self._entry, over=True)
            with contextlib.suppress(OSError):
                self._renew()

    def _keep(self, on_lost: Callable[[str], object]) -> None:
        seen = None
        while not self._ended.wait(TIMING.run_beat):
            found = read(self.path)
            if found is not None and found.job != self._entry.job:
                self.lost = sentence(self.path.parent, found, "has taken over")
                on_lost(self.lost)
                return
            if found is not None and found.over:
                return
            if found is None or found.beat == seen:
                with contextlib.suppress(OSError):
                    self._renew()
                    found = self._entry
            seen = None if found is None else found.beat

    def _renew(self) -> None:
        self._entry = replace(self._entry, beat=secrets.token_hex(8))
        replace_file(self.path, json.dumps(asdict(self._entry)) + "\n")


def check(run_dir: Path) -> None:
    """Raise `ConfigError` if a job has this run directory, for a job that is about to be submitted."""
    await_free(run_dir / "claim", "", pause)


def await_free(path: Path, job: str, wait: Callable[[float], bool]) -> bool:
    """Return True once `job` may have the run directory, False on a stop. Raise `ConfigError` if another job has it."""
    first: Entry | None = None  # the claim that is watched
    looks = 0  # polls are counted, not seconds: a hanging file system delays them and the claim's renewals alike
    while True:
        found = read(path)
        if first is None or found is None or found.job != first.job:
            first, looks = found, 0
        verdict = judge(found, job, _here(), _roles_of)
        if verdict is Verdict.FREE:
            return True
        assert found is not None
        assert first is not None
        if verdict is Verdict.HELD and (not _ends(found.job) or looks * POLL > TIMING.run_ending):
            raise ConfigError(sentence(path.parent, found))
        if verdict is Verdict.WATCH:
            if found.beat != first.beat:
                raise ConfigError(sentence(path.parent, found))
            if looks * POLL > TIMING.run_watch:
                return True
            if looks == 0:
                log_lines.print_line(
                    f"torchft_x: the job {found.job} has begun in the run directory {path.parent} on host "
                    f"{found.scope.host}, and "
                    f"its end is not written there: looking for {TIMING.run_watch:g} s whether it still runs"
                )
        looks += 1
        if wait(POLL):
            return False


def sentence(run_dir: Path, found: Entry, does: str = "runs in") -> str:
    """Return the error message for a run directory that another job has."""
    pids = sorted(_roles_of(found.job)) if found.scope == _here() else []
    where = f"process {pids[0]} on this host" if pids else f"on host {found.scope.host}"
    end = "Ctrl-C where it was started" if found.job.startswith("local_cwd") else f"`torchx cancel {found.job}`"
    return (
        f"Another job {does} the run directory {run_dir}: {found.job} ({where}). Name another --run_dir, wait until that job is "
        f"over, or end it ({end})."
    )


def read(path: Path) -> Entry | None:
    """Return the claim, or None if there is none that can be parsed."""
    try:
        with path.open(encoding="utf-8") as f:
            return from_json(Entry, json.loads(f.read(_LIMIT)))
    except (OSError, ValueError, RecursionError):
        return None


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Lock a free run directory. Where the file system has no locks, the job that wrote last has it, and the other one ends."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _here() -> PidScope:
    try:
        pids = os.readlink("/proc/self/ns/pid")
    except OSError:
        pids = ""
    return PidScope(socket.gethostname(), net.boot_id(), pids)


def _ends(job: str) -> bool:
    """Return whether the roles of a local job are about to end because its launcher is gone."""
    launchers = set(_roles_of(job).values())
    return bool(launchers) and all(pid is not None and not Path(f"/proc/{pid}").exists() for pid in launchers)


def _roles_of(job: str) -> dict[int, str | None]:
    """Return the pids of this host's processes that are roles of the job, without this one, and of their launchers."""
    mark, found = f"{env.TORCHX_JOB_ID}={job}".encode(), dict[int, str | None]()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0") if mark in environ else []
            except OSError:  # the process has ended, or is another user's
                continue
            if _ROLES.intersection(words) and any(b"torchft_x" in word for word in words):
                found[int(name)] = option([os.fsdecode(word) for word in words], "--launcher_pid")
    return found


def pause(seconds: float) -> bool:
    """Sleep, as the `wait` of a process that is never asked to stop."""
    time.sleep(seconds)
    return False
