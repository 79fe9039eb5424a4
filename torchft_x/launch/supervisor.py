"""The supervisor of one group: starts its trainer, restarts it, tells the lighthouse, leaves no process behind.

It runs in the group's container (or as a process of the local scheduler) and outlives the trainer's lives. It joins
no quorum and is never on the data path: if it can't reach the lighthouse, the trainer trains on.

Everything happens on the main thread, in a loop that sleeps until a pipe, a process or a request to stop has
something to say. Requests to stop come from signals, from the lighthouse, and from the launcher's death.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torchft_x
from torchft_x import env, net
from torchft_x.errors import ConfigError, TorchftXError
from torchft_x.launch import tree
from torchft_x.launch.checks import check_script
from torchft_x.launch.environment import TrainerSettings, package_root, trainer_environment
from torchft_x.launch.life import Life, LifeSpec
from torchft_x.launch.locate import Found, Locator
from torchft_x.launch.reports import Reports, connector
from torchft_x.launch.restarts import GiveUp, LifeEnd, RestartRules, Restarts
from torchft_x.observe.events import EventLog

_TICK = 0.1  # seconds; the longest sleep of the loop, for kernels without pidfd
_FLUSH = 2.0  # seconds the last reports may take
_FLUSH_STOPPED = 0.5  # the same when we were told to stop: then the lighthouse mostly was, too
_LOOK = 0.05  # seconds between looks for the lighthouse


@dataclass(frozen=True, kw_only=True)
class SupervisorConfig:
    """Raises `ConfigError` naming the field."""

    group: str
    """REPLICA_GROUP_ID."""
    groups: int
    """NUM_REPLICA_GROUPS."""
    workers: int = 1
    """Processes of the group."""
    command: tuple[str, ...] = ()
    """Script and its arguments."""
    run_dir: Path | None = None
    """Shared by the job; None: no files are written, and the lighthouse's address must be given."""
    lighthouse: str | None = None
    """Address of a lighthouse outside the job; None: the one named in the run directory."""
    rules: RestartRules = RestartRules()
    """When to restart."""
    grace: float = 5.0
    """Seconds between SIGTERM and SIGKILL when the group is told to stop."""
    find_timeout: float = 300.0
    """Seconds to wait for the lighthouse at the start."""
    local: bool = False
    """All groups run on this host, as processes of a local launcher."""
    runner: str = "torchrun"
    """See `LifeSpec.runner`."""

    def __post_init__(self) -> None:
        if not self.command:
            raise ConfigError("No script given: name it after --, as in `torchft_x supervise --group 0 -- train.py`.")
        if self.workers < 1:
            raise ConfigError(f"workers is {self.workers}, a group needs at least one.")
        if self.groups < 1:
            raise ConfigError(f"groups is {self.groups}, a job needs at least one.")


@dataclass(frozen=True)
class _Stop:
    """A request to stop; the first one counts."""

    code: int
    sentence: str


class Supervisor:
    """One group's supervisor. `connect` makes the client that reports to the lighthouse."""

    def __init__(self, config: SupervisorConfig, connect: Callable[[Found], Reports]) -> None:
        self.config = config  # fixed
        self._connect = connect
        self._environ: Mapping[str, str] = env.everything()
        self._reports: Reports | None = None  # until the lighthouse is found
        self._found: Found | None = None
        self._stop: _Stop | None = None  # set once, by any thread; read on the main thread
        self._hurry = False  # a second request came: no grace any more
        self._announced = False  # whether the person was told why it stops
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._life: Life | None = None  # while one runs
        self._attempt = 0
        self._since = time.time()  # with which the attempts are told from those of a supervisor before us
        self._restarts = Restarts(config.rules)
        self._host = self._advertise()
        self._events = EventLog(None, "supervisor")  # replaced by `run`, which may write
        self._scratch = Path()  # pipes; made by `run`, not in the run directory, which may be NFS

    # --- requests to stop ----------------------------------------------------------------------------------------------

    def request_stop(self, code: int, sentence: str, *, hurry: bool = False) -> None:
        """From any thread, also from a signal handler. With `hurry`, a request after the first ends the grace."""
        if self._stop is None:
            self._stop = _Stop(code, sentence)
        elif hurry:
            self._hurry = True
        try:
            self._wake_write.send(b"!")
        except OSError:  # full: it will wake up anyway
            pass

    def _watch_for_stops(self) -> None:
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup asked to ignore it
                signal.signal(number, self._on_signal)
        launcher = env.read_int(env.LAUNCHER_PID, None, self._environ)
        if self.config.local or launcher is not None:
            gone = "the launcher is gone"
            tree.when_parent_dies(launcher, lambda: self.request_stop(128 + signal.SIGTERM, gone, hurry=True))

    def _on_signal(self, number: int, frame: object) -> None:
        self.request_stop(128 + number, f"stopped by {tree.signal_name(number)}", hurry=True)

    # --- the loop ------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Supervise until the group is done; the exit code. Main thread only."""
        tree.become_subreaper()
        self._watch_for_stops()
        self._events = _event_log(self.config)
        self._scratch = Path(tempfile.mkdtemp(prefix="torchft_x-"))
        try:
            if not self._find_lighthouse():
                return self._finish(self._stop_now())
            try:
                check_script(self.config.command[0])
            except ConfigError as e:
                return self._finish(_Stop(2, str(e)))
            return self._finish(self._lives())
        finally:
            tree.kill_descendants()
            self._close_reports()
            self._events.close()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _close_reports(self) -> None:
        """A lighthouse that does not take the last report must not change how the group ends."""
        if self._reports is not None:
            try:
                self._reports.close(_FLUSH if self._stop is None else _FLUSH_STOPPED)
            except TorchftXError as e:
                self._say(f"group {self.config.group}: the lighthouse did not take the last report: {e}")

    def _stop_now(self) -> _Stop:
        assert self._stop is not None
        return self._stop

    def _sleep(self, seconds: float, fds: list[int]) -> None:
        """Until one of these has something, a request to stop arrives, or the time is over."""
        poller = select.poll()
        for fd in (self._wake_read.fileno(), *fds):
            poller.register(fd, select.POLLIN)
        poller.poll(max(0.0, seconds) * 1000)
        try:
            while self._wake_read.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _find_lighthouse(self) -> bool:
        """Wait for it; False: told to stop in the meantime."""
        locator = Locator(self.config.run_dir, self.config.lighthouse, self._environ)
        began = time.monotonic()
        told = False
        while self._stop is None:
            self._found = locator.look()
            if self._found is not None:
                self._reports = self._connect(self._found)
                self._reports.on_stop(self.request_stop)
                return True
            waited = time.monotonic() - began
            if waited > self.config.find_timeout:
                raise ConfigError(f"Gave up after {waited:.0f} s waiting for {locator.missing}.")
            if waited > 5.0 and not told:
                told = True
                self._say(f"group {self.config.group} waits for {locator.missing}")
            self._sleep(_LOOK, [])
        return False

    def _lives(self) -> _Stop:
        """One life after the other; what the group ends with."""
        while True:
            end = self._live()
            if end.ok:
                return _Stop(0, "")
            if self._stop is not None:
                return self._stop
            decision = self._restarts.ended(end, time.monotonic())
            died = f"group {self.config.group} died: {end.reason} after {end.uptime:.1f} s"
            if isinstance(decision, GiveUp):
                self._say(died)
                for line in () if end.shown else end.last_words:
                    self._say(f"    {line}")
                return _Stop(1, decision.sentence)
            total = self.config.rules.max_restarts
            self._say(f"{died}; restart {decision.number} of {total} in {decision.pause:g} s")
            self._attempt += 1
            self._events.emit("restart", attempt=self._attempt, delay=decision.pause, reason=end.reason)
            until = time.monotonic() + decision.pause
            while self._stop is None and time.monotonic() < until:
                self._sleep(until - time.monotonic(), [])
            if self._stop is not None:
                return self._stop

    def _live(self) -> LifeEnd:
        """One life, from start to end, with its reports."""
        assert self._reports is not None
        token = secrets.token_hex(8)
        folder = self._scratch / str(self._attempt)
        folder.mkdir()
        self._reports.started(self._attempt, token)
        self._life = Life(self._spec(token, folder))
        self._events.emit("start", attempt=self._attempt, life=token)
        end = self._watch(self._life)
        self._life = None
        self._reports.exited(self._attempt, token, end.code, end.reason)
        self._events.emit(
            "exit", attempt=self._attempt, life=token, code=end.code, reason=end.reason, duration=end.uptime
        )
        shutil.rmtree(folder, ignore_errors=True)
        return end

    def _watch(self, life: Life) -> LifeEnd:
        deadline: float | None = None  # of the grace, once told to stop
        while True:
            end = life.poll()
            if end is not None:
                return end
            if self._stop is not None and deadline is None:
                deadline = time.monotonic() + self.config.grace
                self._announce(self._stop)
                life.terminate()
            if deadline is not None and (self._hurry or time.monotonic() > deadline):
                return life.kill()
            self._sleep(_TICK, life.fds())

    # --- parts ---------------------------------------------------------------------------------------------------------

    def _advertise(self) -> str:
        """The host that other groups reach this one by; on one machine the loopback, whose name never fails."""
        return net.advertise_host("127.0.0.1" if self._loopback() else None, self._environ)

    def _loopback(self) -> bool:
        return self.config.local and env.read(env.ADVERTISE_HOST, None, self._environ) is None

    def _spec(self, token: str, folder: Path) -> LifeSpec:
        config = self.config
        assert self._found is not None
        settings = TrainerSettings(
            group=config.group,
            groups=config.groups,
            workers=config.workers,
            attempt=self._attempt,
            since=self._since,
            life=token,
            lighthouse=self._found.address.url,
            run_dir=str(config.run_dir or ""),
            token_file=self._found.token_file,
            advertise_host=self._host,
            cores=len(os.sched_getaffinity(0)),
            groups_here=config.groups if config.local else 1,
            package_root=package_root(torchft_x.__file__, _installed()),
        )
        return LifeSpec(
            command=config.command,
            workers=config.workers,
            env=trainer_environment(self._environ, settings),
            folder=folder,
            run_dir=config.run_dir,
            name=f"group-{config.group.replace('/', '_')}-attempt-{self._attempt}",
            local_addr=self._host,
            runner=config.runner,
        )

    def _finish(self, stop: _Stop) -> int:
        """Tell the lighthouse and the person how it ends."""
        if stop.code != 0:
            self._events.emit("error", reason=stop.sentence, code=stop.code)
        self._announce(stop)
        logging.getLogger("torchft_x").setLevel(logging.ERROR)  # the lighthouse may go away now, as it should
        if self._reports is not None:
            self._reports.done(stop.code, stop.sentence)
        return stop.code

    def _announce(self, stop: _Stop) -> None:
        """Say once why the group stops."""
        if stop.sentence and not self._announced:
            self._announced = True
            self._say(f"group {self.config.group} stops: {stop.sentence}")

    def _say(self, text: str) -> None:
        if self._life is not None:
            self._life.relay.say(text)
        else:
            print(text, file=sys.stderr, flush=True)


def _event_log(config: SupervisorConfig) -> EventLog:
    try:
        return EventLog(config.run_dir, "supervisor", group=config.group, host=socket.gethostname())
    except OSError as e:
        raise ConfigError(f"The run directory {config.run_dir} can't be written ({e.strerror}).") from None


def _installed() -> tuple[str, ...]:
    """Folders Python searches without being told."""
    import site

    return (*site.getsitepackages(), site.getusersitepackages())


def supervise(config: SupervisorConfig) -> int:
    """Run the group's supervisor; the exit code. A user's mistake is one sentence and 2."""
    try:
        return Supervisor(config, connector(config.group)).run()
    except TorchftXError as e:
        print(f"torchft_x: group {config.group}: {e}", file=sys.stderr, flush=True)
        return 2
