"""The supervisor of one group: starts its trainer, restarts it, tells the lighthouse, leaves no process behind.

A group over several nodes has one on each; nodes.py says how they begin and end a life together. What it shares with the
supervisor of a program beside the groups (accompany.py) is `Keeper`.

It runs in the group's container (or as a process of the local scheduler) and outlives the trainer's lives. It joins
no quorum and is never on the data path: if it can't reach the lighthouse, the trainer trains on.

Everything happens on the main thread, in a loop that sleeps until a pipe, a process or a request to stop has
something to say. Requests to stop come from signals, from the lighthouse, and from the launcher's death.
"""

from __future__ import annotations

import logging
import os
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
from typing import Any

import torchft_x
from torchft_x import env, net
from torchft_x.errors import ConfigError, TorchftXError
from torchft_x.launch import tree
from torchft_x.launch.checks import check_script
from torchft_x.launch.environment import TrainerSettings, package_root, trainer_environment
from torchft_x.launch.life import Life, LifeSpec
from torchft_x.launch.locate import Found, Locator
from torchft_x.launch.nodes import Alone, Begun, Lives, OneOfSeveral, Place
from torchft_x.launch.reports import Reports, connector
from torchft_x.launch.restarts import GiveUp, LifeEnd, RestartRules, Restarts
from torchft_x.observe.events import EventLog

_TICK = 0.1  # seconds; the longest sleep of the loop, for kernels without pidfd
_FLUSH = 2.0  # seconds the last reports may take
_FLUSH_STOPPED = 0.5  # the same when we were told to stop: then the lighthouse mostly was, too
_IDLE = 60.0  # seconds; the longest sleep while nothing runs
_LOOK = 0.05  # seconds between looks for the lighthouse


@dataclass(frozen=True, kw_only=True)
class KeeperConfig:
    """What every supervisor must know."""

    command: tuple[str, ...] = ()
    """Script or program, and its arguments."""
    run_dir: Path | None = None
    """Shared by the job; None: no files are written, and the lighthouse's address must be given."""
    lighthouse: str | None = None
    """Address of a lighthouse outside the job; None: the one named in the run directory."""
    rules: RestartRules = RestartRules()
    """When to restart."""
    grace: float = 5.0
    """Seconds between SIGTERM and SIGKILL when the processes are told to stop."""
    find_timeout: float = 300.0
    """Seconds to wait for the lighthouse at the start."""
    local: bool = False
    """All processes of the job run on this host, started by a local launcher."""

    @property
    def whole(self) -> str:
        """What is kept running, for people."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """This supervisor's part of it, for people."""
        return self.whole


@dataclass(frozen=True, kw_only=True)
class SupervisorConfig(KeeperConfig):
    """Raises `ConfigError` naming the field."""

    group: str
    """REPLICA_GROUP_ID."""
    groups: int
    """NUM_REPLICA_GROUPS."""
    workers: int = 1
    """Processes of the group, on all its nodes."""
    node: int = 0
    """Which node of the group this is."""
    nodes: int = 1
    """Nodes of the group, each with a supervisor."""
    number_timeout: float = 5.0
    """Seconds to wait until the lighthouse has told the number of the first life."""
    patience: float = 3600.0
    """Seconds to wait for the group's other nodes before it is given up."""
    runner: str = "torchrun"
    """See `LifeSpec.runner`."""

    def __post_init__(self) -> None:
        if not self.command:
            raise ConfigError("No script given: name it after --, as in `torchft_x supervise --group 0 -- train.py`.")
        if self.workers < 1:
            raise ConfigError(f"workers is {self.workers}, a group needs at least one.")
        if self.groups < 1:
            raise ConfigError(f"groups is {self.groups}, a job needs at least one.")
        if not 0 <= self.node < self.nodes:
            raise ConfigError(f"node is {self.node} of {self.nodes} nodes; they are counted from 0.")
        if self.workers % self.nodes:
            raise ConfigError(
                f"workers is {self.workers}, the group's total, and nodes is {self.nodes}: each node must get the same number."
            )

    @property
    def whole(self) -> str:
        return f"group {self.group}"

    @property
    def name(self) -> str:
        return self.whole if self.nodes == 1 else f"node {self.node} of group {self.group}"


@dataclass(frozen=True)
class _Stop:
    """A request to stop; the first one counts."""

    code: int
    sentence: str
    from_outside: bool = False  # by a signal, or the launcher's death: whoever sent it may start this again


class Keeper:
    """Keeps something running, with everything in this module's first lines. Subclasses say what.

    `connect` makes the client that reports to the lighthouse.
    """

    role = "supervisor"
    """In the event log."""
    code_without_launcher = 128 + signal.SIGTERM
    """Exit code when the launcher is gone."""

    def __init__(self, config: KeeperConfig, connect: Callable[[Found], Reports]) -> None:
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
        self._lives: Lives | None = None  # until the lighthouse is found
        self._life: Life | None = None  # while one runs
        self._attempt = 0  # of the present life, or of the next one
        self._restarts = Restarts(config.rules)
        self._host = self._advertise()
        self._events = EventLog(None, self.role)  # replaced by `run`, which may write
        self._scratch = Path()  # pipes; made by `run`, not in the run directory, which may be NFS

    # --- requests to stop ----------------------------------------------------------------------------------------------

    def request_stop(self, code: int, sentence: str, *, from_outside: bool = False) -> None:
        """From any thread, also from a signal handler. One `from_outside` after the first request ends the grace."""
        if self._stop is None:
            self._stop = _Stop(code, sentence, from_outside)
        elif from_outside:
            self._hurry = True
        self._wake()

    def _wake(self) -> None:
        """End the main thread's sleep. From any thread."""
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
            tree.when_parent_dies(
                launcher, lambda: self.request_stop(self.code_without_launcher, gone, from_outside=True)
            )

    def _on_signal(self, number: int, frame: object) -> None:
        self.request_stop(128 + number, f"stopped by {tree.signal_name(number)}", from_outside=True)

    # --- the loop ------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Supervise until the group is done; the exit code. Main thread only."""
        tree.become_subreaper()
        self._watch_for_stops()
        self._events = self._event_log()
        self._scratch = Path(tempfile.mkdtemp(prefix="torchft_x-"))
        try:
            if not self._find_lighthouse():
                return self._finish(self._stop_now())
            try:
                self._check_command()
            except ConfigError as e:
                return self._finish(_Stop(2, str(e)))
            return self._finish(self._run_lives())
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
                self._say(f"{self.config.name}: the lighthouse did not take the last report: {e}")

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
                self._lives = self._make_lives(self._reports)
                return True
            waited = time.monotonic() - began
            if waited > self.config.find_timeout:
                raise ConfigError(f"Gave up after {waited:.0f} s waiting for {locator.missing}.")
            if waited > 5.0 and not told:
                told = True
                self._say(f"{self.config.name} waits for {locator.missing}")
            self._sleep(_LOOK, [])
        return False

    def _run_lives(self) -> _Stop:
        """One life after the other; what the group ends with."""
        assert self._lives is not None
        while True:
            end = self._live(self._lives)
            if end is not None and end.ok:
                return _Stop(0, "")
            if end is None or self._stop is not None:
                return self._stop_now()
            if self._lives.decides:
                over = self._restart_or_give_up(end)
                if over is not None:
                    return over
            self._attempt += 1

    def _restart_or_give_up(self, end: LifeEnd) -> _Stop | None:
        """After a life that did not end well. None: start the next one, now."""
        decision = self._restarts.ended(end, time.monotonic())
        died = f"{self.config.whole} died: {end.reason} after {end.uptime:.1f} s"
        if isinstance(decision, GiveUp):
            self._say(died)
            for line in () if end.shown else end.last_words:
                self._say(f"    {line}")
            return _Stop(1, decision.sentence)
        total = self.config.rules.max_restarts
        self._say(f"{died}; restart {decision.number} of {total} in {decision.pause:g} s")
        self._events.emit("restart", attempt=self._attempt + 1, delay=decision.pause, reason=end.reason)
        self._wait(lambda: False, decision.pause)
        return self._stop

    def _live(self, lives: Lives) -> LifeEnd | None:
        """One life, from start to end, with its reports; how it ended for the group. None: told to stop."""
        begun = lives.begin(self._next_attempt())
        if begun is None:
            return None
        self._attempt = begun.attempt
        folder = self._scratch / str(self._attempt)
        folder.mkdir()
        self._life = Life(self._spec(begun, folder))
        self._events.emit("start", attempt=begun.attempt, life=begun.life)
        end = self._watch(self._life, lives, begun)
        self._life = None
        lives.ended(begun, end)
        self._events.emit(
            "exit", attempt=begun.attempt, life=begun.life, code=end.code, reason=end.reason, duration=end.uptime
        )
        shutil.rmtree(folder, ignore_errors=True)
        return lives.outcome(begun, end)

    def _watch(self, life: Life, lives: Lives, begun: Begun) -> LifeEnd:
        deadline: float | None = None  # of the grace, once told to stop
        while True:
            end = life.poll()
            if end is not None:
                return end
            if self._stop is not None and deadline is None:
                deadline = time.monotonic() + self.config.grace
                self._announce(self._stop)
                life.terminate()
            if life.has_finished and deadline is None:
                lives.finished(begun)
            if lives.is_over(begun) if deadline is None else (self._hurry or time.monotonic() > deadline):
                return life.kill()
            self._sleep(_TICK, life.fds())

    def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Until it is true; False: told to stop, or time is up. Whoever makes it true must wake us."""
        until = time.monotonic() + seconds
        while self._stop is None and time.monotonic() < until:
            if condition():
                return True
            self._sleep(min(until - time.monotonic(), _IDLE), [])
        return self._stop is None and condition()

    # --- parts ---------------------------------------------------------------------------------------------------------

    def _advertise(self) -> str:
        """The host that other groups reach this one by; on one machine the loopback, whose name never fails."""
        return net.advertise_host("127.0.0.1" if self._loopback() else None, self._environ)

    def _loopback(self) -> bool:
        return self.config.local and env.read(env.ADVERTISE_HOST, None, self._environ) is None

    def _next_attempt(self) -> int:
        return self._attempt

    # --- what is kept running ------------------------------------------------------------------------------------------

    def _check_command(self) -> None:
        """Raise `ConfigError` if it can't work."""
        raise NotImplementedError

    def _make_lives(self, reports: Reports) -> Lives:
        raise NotImplementedError

    def _spec(self, begun: Begun, folder: Path) -> LifeSpec:
        raise NotImplementedError

    def _event_fields(self) -> dict[str, Any]:
        """In every line of the event log."""
        raise NotImplementedError

    def _finish(self, stop: _Stop) -> int:
        """Tell the lighthouse and the person how it ends; the exit code."""
        if stop.code != 0:
            self._events.emit("error", reason=stop.sentence, code=stop.code)
        self._announce(stop)
        logging.getLogger("torchft_x").setLevel(logging.ERROR)  # the lighthouse may go away now, as it should
        give_up_code = env.read_int(env.GIVE_UP_CODE, None, self._environ)
        if give_up_code is not None and stop.from_outside:
            return stop.code  # the scheduler will start this again, so it isn't done
        if self._reports is not None:
            self._reports.done(stop.code, stop.sentence)
        return give_up_code if stop.code != 0 and give_up_code is not None else stop.code

    def _announce(self, stop: _Stop) -> None:
        """Say once why it stops."""
        if stop.sentence and not self._announced:
            self._announced = True
            self._say(f"{self.config.name} stops: {stop.sentence}")

    def _say(self, text: str) -> None:
        if self._life is not None:
            self._life.relay.say(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def _event_log(self) -> EventLog:
        try:
            return EventLog(self.config.run_dir, self.role, host=socket.gethostname(), **self._event_fields())
        except OSError as e:
            raise ConfigError(f"The run directory {self.config.run_dir} can't be written ({e.strerror}).") from None


class Supervisor(Keeper):
    """One group's supervisor, on the group's only node or on one of several."""

    config: SupervisorConfig

    def __init__(self, config: SupervisorConfig, connect: Callable[[Found], Reports]) -> None:
        super().__init__(config, connect)
        self._told: int | None = None  # number of the next life at the least, by the lighthouse; set by any thread

    def _run_lives(self) -> _Stop:
        """Lives of a supervisor before us would fence ours if we counted from 0 (R2), so wait for our number."""
        self._wait(lambda: self._told is not None, self.config.number_timeout)
        return self._stop or super()._run_lives()

    def _next_attempt(self) -> int:
        return max(self._attempt, self._told or 0)

    def _on_number(self, attempt: int) -> None:
        """From the client's thread."""
        self._told = max(attempt, self._told or 0)
        self._wake()

    def _check_command(self) -> None:
        check_script(self.config.command[0])

    def _event_fields(self) -> dict[str, Any]:
        node = None if self.config.nodes == 1 else self.config.node
        return {"group": self.config.group, "node": node}

    def _make_lives(self, reports: Reports) -> Lives:
        config = self.config
        reports.on_number(self._on_number)
        if config.nodes == 1:
            return Alone(reports)
        place = Place(
            group=config.group, node=config.node, nodes=config.nodes, host=self._host, patience=config.patience
        )
        return OneOfSeveral(
            place,
            reports,
            wait=self._wait,
            stopped=lambda: self._stop is not None,
            wake=self._wake,
            say=self._say,
            give_up=lambda sentence: self.request_stop(1, sentence),
        )

    def _spec(self, begun: Begun, folder: Path) -> LifeSpec:
        config = self.config
        assert self._found is not None
        settings = TrainerSettings(
            group=config.group,
            groups=config.groups,
            workers=config.workers // config.nodes,
            attempt=begun.attempt,
            life=begun.life,
            lighthouse=self._found.address.url,
            run_dir=str(config.run_dir or ""),
            token_file=self._found.token_file,
            advertise_host=self._host,
            cores=len(os.sched_getaffinity(0)),
            groups_here=config.groups * config.nodes if config.local else 1,
            package_root=own_package_root(),
        )
        return LifeSpec(
            command=config.command,
            workers=config.workers // config.nodes,
            env=trainer_environment(self._environ, settings),
            folder=folder,
            run_dir=config.run_dir,
            name=f"group-{config.group.replace('/', '_')}-attempt-{begun.attempt}",
            local_addr=self._host,
            node=config.node,
            nodes=config.nodes,
            meeting=begun.meeting,
            runner=config.runner,
        )


def own_package_root() -> str | None:
    """What a bare clone puts on PYTHONPATH."""
    import site

    # folders Python searches without being told
    return package_root(torchft_x.__file__, (*site.getsitepackages(), site.getusersitepackages()))


def supervise(config: SupervisorConfig) -> int:
    """Run the group's supervisor; the exit code. A user's mistake is one sentence and 2."""
    try:
        return Supervisor(config, connector(config.group, config.node, config.nodes)).run()
    except TorchftXError as e:
        print(f"torchft_x: {config.name}: {e}", file=sys.stderr, flush=True)
        return 2
