"""Supervisor of the lighthouse: the process of ``torchft_x lighthouse``, with the lighthouse as its child.

A lighthouse that is killed, or fails, is restarted at the same port and recovers from its predecessor's journal
(rpc/lighthouse/failover/journal.py), so that the groups go on. This parent imports neither grpc nor torch. It binds the
port too, without listening, so that the port stays taken while no child listens on it.

The exit code is the child's: 0 and 1 are the job's verdict (or 0 the answer to SIGTERM), 2 a mistake in the arguments.
Apart from these and from requests to stop, only too many deaths end this process.

In a run directory `complete` makes ``token`` (0600, an existing one is kept), and then the server writes its address to
``lighthouse``. The token is therefore readable as soon as the address is. ``lighthouse.state`` is the journal from which
the next lighthouse in that directory recovers. Several lighthouses of a job share a lease and a journal below ``lighthouses/``
(``--lease_dir``) instead, and the one that serves writes its address.
"""

from __future__ import annotations

import errno
import importlib.metadata
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from torchft_x import env, last_words, log_lines, net
from torchft_x.address_files import LIGHTHOUSE, make_run_dir
from torchft_x.arguments import option
from torchft_x.errors import ConfigError, TorchftXError
from torchft_x.launch.job.run_claim import RunClaim
from torchft_x.launch.process import process_tree
from torchft_x.launch.process.environment import with_package
from torchft_x.launch.process.group_store import SHIM
from torchft_x.launch.process.restarts import LIGHTHOUSE_RULES, OWN_FAULTS, AttemptEnd, GiveUp, RestartPolicy
from torchft_x.launch.supervisor.config import LauncherOptions, own_package_root
from torchft_x.launch.supervisor.requests import StopRequests
from torchft_x.launch.workers import attempts_file
from torchft_x.observe.events import EventLog
from torchft_x.timing import PATIENCE, POLL, TIMING

_VERDICTS = (0, 1)  # exit codes that end the job
_STANDS_BY = 75  # exit code of a child that has lost the lease (rpc.lighthouse.main)
_USAGE = 2  # final for the first child, as the arguments stay the same; from a later one it means a port or a file
_BIND = "--bind"
_ANY_PORT = "[::]:29510"  # the server's default
_PORT = 29510  # torchft's default


class LighthouseSupervisor:
    """Supervisor of a lighthouse server with the flags `argv`. Restarts the server and decides when it is given up.

    Main thread only. `claim` is that of the run directory, already taken.
    """

    def __init__(self, argv: list[str], launcher: LauncherOptions, claim: RunClaim | None = None) -> None:
        self._argv = argv
        self._launcher = launcher  # fixed
        self._claim = claim
        self._attempt = int(option(argv, "--attempt") or 0)  # number of the next child
        self._stops = StopRequests(launcher.alive)
        self._restarts = RestartPolicy(LIGHTHOUSE_RULES)
        self._events: EventLog | None = None  # made with the first event
        self._report = attempts_file.read(launcher.attempts_file)
        self._first = True  # whether the first child still runs
        self._owner = secrets.token_hex(8)  # lease owner, shared by all children: each ends before the next one starts

    def run(self) -> int:
        """Keep the server running until the job's verdict, a request to stop or too many deaths; return the exit code."""
        process_tree.become_subreaper()
        self._stops.watch_signals()
        pid = self._launcher.launcher_pid
        if pid is not None or env.is_local_job():
            self._stops.watch_launcher(pid, 0)
        if self._claim is not None:
            self._claim.keep(lambda sentence: self._stops.request(2, sentence))
        scratch = Path(tempfile.mkdtemp(prefix="torchft_x-lighthouse-"))
        held = None
        try:
            argv, held = hold_port(self._argv)
            if option(argv, "--lease_dir") is None and option(argv, "--state_file") is None:
                argv = [*argv, "--state_file", str(scratch / "state")]  # a journal that lives as long as this process
            return self._told(self._end_claim(self._keep(argv)))
        finally:
            process_tree.kill_descendants()
            if held is not None:
                held.close()
            if self._events is not None:
                self._events.close()
            shutil.rmtree(scratch, ignore_errors=True)

    def _end_claim(self, code: int) -> int:
        """End the claim on the run directory, as over unless we were told to stop, and return the exit code: 2 if it was lost."""
        if self._claim is None:
            return code
        self._claim.end(over=self._stops.first is None and code in _VERDICTS)
        if not self._claim.lost:
            return code
        self._say(self._claim.lost)
        last_words.write(2, self._claim.lost, self._launcher.last_words)
        return 2

    def _told(self, code: int) -> int:
        """Return the exit code for a scheduler that restarts us unless the code says that the job is over."""
        over, words = self._launcher.no_restart_code, self._launcher.last_words
        if over is None:
            return code
        if self._stops.first is not None and self._stops.first.from_outside:
            return code or 128 + signal.SIGTERM  # the job isn't over
        if code != 0 and not last_words.was_written(words):
            last_words.write(code, f"the lighthouse ended with code {code}; its log says why.", words)
        return over if code != 0 else 0

    def _keep(self, argv: list[str]) -> int:
        while True:
            began = time.monotonic()
            code = self._live(argv)
            stop = self._stops.first
            if stop is not None:
                return 0 if code == -signal.SIGTERM else code if code >= 0 else 128 - code  # SIGTERM: before it served
            if code in _VERDICTS or (code == _USAGE and self._first):
                return code
            self._first = False
            if code == _STANDS_BY:
                self._attempt += 1
                self._stops.wait(lambda: False, TIMING.stand_by_pause)
                if self._stops.first is not None:
                    return 0
                continue
            uptime = time.monotonic() - began
            how = f"killed by {process_tree.signal_name(-code)}" if code < 0 else f"it ended with code {code}"
            own = code > 0 or -code in OWN_FAULTS
            code = 1 if code == _USAGE else code  # the first child accepted the arguments
            end = AttemptEnd(False, code, how, own, uptime >= LIGHTHOUSE_RULES.quick, uptime)
            pause = self._restarts.ended(end, time.monotonic())
            if isinstance(pause, GiveUp):
                self._say(f"the lighthouse is given up: {pause.sentence}. See its last lines above.")
                return 1
            when = f" in {pause:g} s" if pause else ""
            self._say(f"the lighthouse died: {end.reason} after {end.uptime:.1f} s; it is started again{when}")
            self._attempt += 1
            self._note(end, pause)
            if not self._stops.wait(lambda: False, pause) and self._stops.first is not None:
                return 0

    def _live(self, argv: list[str]) -> int:
        """Run the server once, and return its exit code or -signal."""
        server = [sys.executable, "-m", "torchft_x.rpc.lighthouse.main", *argv]
        server += ["--attempt", str(self._attempt), "--lease_owner", self._owner]
        server += ["--last_words", self._launcher.last_words] if self._launcher.last_words else []
        environ = with_package(env.everything(), own_package_root())
        env.prepare_lighthouse(environ, importlib.metadata.version("grpcio"))
        child = subprocess.Popen(
            [sys.executable, SHIM, "server", str(os.getpid()), *server],
            env=environ,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is passed on, once
        )
        pidfd = process_tree.open_pidfd(child.pid)
        deadline: float | None = None  # monotonic time at which to kill the child; None until told to stop
        try:
            while True:
                ended = process_tree.reap().get(child.pid)
                if ended is not None:
                    child.returncode = ended  # Popen must not wait for a pid we have collected
                    return ended
                if self._stops.first is not None and deadline is None:
                    deadline = time.monotonic() + TIMING.lighthouse_grace
                    process_tree.send([child.pid], signal.SIGTERM)
                if deadline is not None and (self._stops.hurry or time.monotonic() > deadline):
                    process_tree.send([child.pid], signal.SIGKILL)
                self._stops.sleep(POLL, () if pidfd is None else (pidfd,))
        finally:
            if pidfd is not None:
                os.close(pidfd)

    def _note(self, end: AttemptEnd, pause: float) -> None:
        """Record a restart in the attempts file and in the run's event log."""
        self._report = replace(self._report, restarts=self._report.restarts + 1, reason=end.reason)
        attempts_file.write(self._report, self._launcher.attempts_file)
        run_dir = option(self._argv, "--run_dir")
        try:
            self._events = self._events or EventLog(run_dir, "lighthouse")
        except OSError:
            return
        self._events.emit("restart", attempt=self._attempt, delay=pause, reason=f"the lighthouse was {end.reason}")

    def _say(self, text: str) -> None:
        log_lines.print_line(f"torchft_x: {text}", role="lighthouse")


def hold_port(argv: list[str]) -> tuple[list[str], socket.socket | None]:
    """Bind the port without listening, so that no other process gets it between two starts. Return flags and socket.

    In the flags port 0 is replaced by the bound one. Linux lets a second socket listen on the port if both have
    SO_REUSEADDR. The socket is None if the port can't be bound; the server reports that error in more detail.
    """
    try:
        bind = net.parse_address(option(argv, _BIND) or _ANY_PORT, what=_BIND)
    except TorchftXError:
        return argv, None
    deadline = time.monotonic() + TIMING.port_wait
    while True:
        try:
            held = net.bound(bind)
            break
        except OSError as e:
            if e.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                return argv, None
            time.sleep(0.02)
    port = held.getsockname()[1]
    return [*argv, _BIND, net.Address(bind.host, port).target], held


def make_token(run_dir: Path) -> Path:
    """Return the path of the run's token file; make it if it is absent.

    Raise `ConfigError` if the directory can't be written.
    """
    path = run_dir / "token"
    _make(run_dir)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        deadline = time.monotonic() + PATIENCE
        while path.stat().st_size == 0 and time.monotonic() < deadline:  # its reader reports an empty token
            time.sleep(0.02)
        return path
    except OSError as e:
        raise ConfigError(f"The run directory {run_dir} can't be written ({e.strerror}); see --run_dir.") from None
    with os.fdopen(fd, "w", encoding="ascii") as f:
        f.write(env.new_token() + "\n")
    return path


def complete(argv: list[str], run_dir: Path, *, local: bool) -> list[str]:
    """Return the server's flags, completed with the role's. A flag that is given keeps its value."""
    added: list[str] = []
    if "--lease_dir" in argv and "--job_groups" in argv:  # the job's own: a new one for each job
        folder = Path(argv[argv.index("--lease_dir") + 1])
        if (
            run_dir.absolute() in folder.absolute().parents
        ):  # one elsewhere must be there: it may be a file system that is not mounted here
            _make(run_dir, folder.parent, folder)
    if "--bind" not in argv:  # a local job shares its host's ports with other jobs
        _, expected = env.read_lighthouse_at() or ("", _PORT)
        added += ["--bind", f"[::]:{0 if local else expected}"]
    if "--token_file" not in argv and env.read(env.TOKEN) is None and env.read(env.TOKEN_FILE) is None:
        added += ["--token_file", str(make_token(run_dir))]
    if "--address_file" not in argv:
        added += ["--address_file", str(run_dir / LIGHTHOUSE)]
    if not {"--state_file", "--lease_dir"} & {*argv, *added}:
        added += ["--state_file", str(run_dir / "lighthouse.state")]
    given = env.read(env.ADVERTISE_HOST) or env.read(env.ADVERTISE_INTERFACE)
    if local and "--advertise_host" not in argv and given is None:
        added += ["--advertise_host", "127.0.0.1"]
    return [*argv, *added]


def _make(*folders: Path) -> None:
    """Create folders of the run directory, each in the one before. Raise `ConfigError`."""
    try:
        for folder in folders:
            make_run_dir(folder)
    except OSError as e:
        raise ConfigError(f"The run directory {folders[0]} can't be written ({e.strerror}); see --run_dir.") from None
