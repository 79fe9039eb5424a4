"""Real processes as a stage: a lighthouse, supervisors, torchrun, trainers with gloo, real signals, real links.

Every group, and the lighthouse, has a machine of its own (a network namespace) where that is possible. Otherwise all
run on this host, and links can't be cut. The groups' actions are read from the run's event files. A second of the story
is a second on every machine; only waits and expectations are stretched on slow ones.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.scenario.networks import Networks
from tests.scenario.play import Commit, Record
from tests.scenario.values import EVERYBODY, LIGHTHOUSE, Action, Cut, Join, Kill, Leave, Lose, Pause, Scenario, Start
from tests.started import TORCHFT_X, Started
from tests.util import clock, free_port, scaled, wait_for
from torchft_x import env
from torchft_x.launch.process import process_tree
from torchft_x.observe.events import EventTail
from torchft_x.observe.processes import job_processes

TRAINER = Path(__file__).with_name("trainer.py")
_LOOK = 0.005
_PORT = 29510


class Failed(AssertionError):
    """A story that did not go on; the message says where to look."""


class Cluster:
    """A cluster of real processes: the `Stage` made by `cluster`, which removes everything at its end."""

    def __init__(self, scenario: Scenario, folder: Path, networks: Networks | None) -> None:
        self.record = Record()
        self.run_dir = folder / "run"
        self.dumps = folder / "dumps"
        self._scenario = scenario
        self._networks = networks  # None: all processes run on this host
        self._port = _PORT if networks else free_port()
        self._token = secrets.token_hex(8)
        self._tail = EventTail(self.run_dir)
        self._services: dict[str, subprocess.Popen[bytes]] = {}  # group -> its supervisor; and the lighthouse
        self._all: list[subprocess.Popen[bytes]] = []  # all services so far, with those that have ended
        self._later: list[
            tuple[float, Callable[[], None]]
        ] = []  # (monotonic time, call) of the ends of pauses, cuts and power failures
        self._heals: dict[str, float] = {}  # group -> Unix time at which it last began to heal
        self.run_dir.mkdir(parents=True)
        self._add_machine(LIGHTHOUSE)
        for group in scenario.wanted(0):
            self._add_machine(group)

    # --- the stage -----------------------------------------------------------------------------------------------------

    def now(self) -> float:
        return time.time()

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + scaled(seconds)
        while True:
            self._read()
            if condition():
                return
            for due in [x for x in self._later if x[0] <= time.monotonic()]:
                self._later.remove(due)
                due[1]()
            for name, service in self._services.items():
                if service.poll() is not None:
                    raise Failed(self._tell(f"{name} has ended with {service.returncode} before {what}"))
            if time.monotonic() > deadline:
                raise Failed(self._tell(f"waited {scaled(seconds):g} s for {what}"))
            time.sleep(_LOOK)

    def does(self, group: str, what: str) -> Callable[[], bool]:
        assert what == "heals"
        since = time.time()
        return lambda: self._heals.get(group, 0.0) > since

    def busy(self) -> bool:
        return bool(self._later)

    def act(self, action: Action) -> None:
        if isinstance(action, Kill):
            self._kill(action)
        elif isinstance(action, Start):
            group = action.target.group
            self._start_supervisor(group) if group else self.start_lighthouse()
        elif isinstance(action, Pause):
            self._pause(action)
        elif isinstance(action, Cut):
            self._cut(action)
        elif isinstance(action, Lose):
            self._lose(action)
        elif isinstance(action, Leave):
            self._take(action.group).send_signal(signal.SIGTERM)
        else:
            assert isinstance(action, Join)
            self._add_machine(action.group)
            self._start_supervisor(action.group)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + clock(seconds), call))

    # --- services ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.start_lighthouse()
        for group in self._scenario.wanted(0):
            self._start_supervisor(group)

    def close(self) -> None:
        """Kill all processes of the run, and wait until they have ended."""

        def ended() -> bool:
            process_tree.send(job_processes(self.run_dir), signal.SIGKILL)
            return all(s.poll() is not None for s in self._all) and not job_processes(self.run_dir)

        wait_for(ended, 20.0, f"the end of {job_processes(self.run_dir)}")

    def start_lighthouse(self) -> None:
        bind = f"{self._address(LIGHTHOUSE)}:{self._port}"
        command = ["lighthouse", "--bind", bind, "--min_replicas", "1"]
        if self._scenario.heartbeat_timeout is not None:
            command += ["--heartbeat_timeout_ms", str(int(1000 * clock(self._scenario.heartbeat_timeout)))]
        self._start(LIGHTHOUSE, [*command, "--run_dir", str(self.run_dir)])

    def _start_supervisor(self, group: str) -> None:
        command = ["supervise", "--group", group, "--groups", str(self._scenario.groups), "--workers", "1"]
        command += ["--max_restarts", "1000", "--run_dir", str(self.run_dir), "--", str(TRAINER)]
        self._start(group, [*command, "--dump-params", str(self.dumps)])

    def _start(self, host: str, arguments: Sequence[str]) -> None:
        """Start a service, which ends with this process."""
        kind, *options = arguments
        command = [*self._command(host), *TORCHFT_X, kind, "--launcher_pid", str(os.getpid()), *options]
        log = self.run_dir / f"{len(self._all):02d}-{host}.log"
        self._services[host] = Started(command, log, **self._environ(host)).process
        self._all.append(self._services[host])

    def _environ(self, host: str) -> dict[str, str]:
        kills = any(isinstance(d.action, Kill) and d.action.target.kind == "trainer" for d in self._scenario.story)
        return {
            env.WARM: "1" if kills else "0",  # without kills no worker is started again: spare the imports
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            env.RUN_DIR: str(self.run_dir),
            env.LIGHTHOUSE: f"http://{self._address(LIGHTHOUSE)}:{self._port}",
            env.TOKEN: self._token,
            env.ADVERTISE_HOST: self._address(host),
            env.TIMEOUT: str(clock(self._scenario.timeout)),
        }

    def _command(self, host: str) -> list[str]:
        """Return a prefix that runs a command on that machine."""
        return self._networks.command(host) if self._networks else []

    def _address(self, host: str) -> str:
        return self._networks.address(host) if self._networks else "127.0.0.1"

    def _add_machine(self, host: str) -> None:
        if self._networks:
            self._networks.add(host)

    def _trainers(self, group: str) -> list[int]:
        """Return the pids of the group's running workers."""
        return [pid for pid in process_tree.descendants(self._services[group].pid) if is_worker(pid)]

    # --- deeds ---------------------------------------------------------------------------------------------------------

    def _kill(self, action: Kill) -> None:
        target = action.target
        if target.kind == "trainer":
            process_tree.send(self._wait_for_trainers(target.group), signal.SIGKILL)
            return
        service = self._take(target.group or LIGHTHOUSE)
        # The lighthouse's server, which would die a moment later.
        below = [] if target.group else process_tree.descendants(service.pid)
        service.kill()
        process_tree.send(below, signal.SIGKILL)
        service.wait(scaled(10))
        self.until(lambda: not any(process_tree.is_alive(pid) for pid in below), 10.0, "the end of the lighthouse")

    def _take(self, host: str) -> subprocess.Popen[bytes]:
        """Remove and return a supervisor or lighthouse, whose end is expected. Wait for its machine if that is off."""
        self.until(lambda: host in self._services, 30.0, f"the machine of {host} is back")
        return self._services.pop(host)

    def _wait_for_trainers(self, group: str) -> list[int]:
        """Return the pids of the group's workers, at least one, or none if its machine is off."""
        if group not in self._services:
            return []
        self.until(lambda: bool(self._trainers(group)), 30.0, f"{group} has a trainer")
        return self._trainers(group)

    def _pause(self, action: Pause) -> None:
        group = action.target.group
        pids = self._wait_for_trainers(group) if group else process_tree.descendants(self._services[LIGHTHOUSE].pid)
        process_tree.send(pids, signal.SIGSTOP)
        self._after(action.seconds, lambda: process_tree.send(pids, signal.SIGCONT))

    def _cut(self, action: Cut) -> None:
        networks, a, b = self._networks, action.group, action.other
        if b == EVERYBODY:
            networks.unplug(a)
            self._after(action.seconds, lambda: networks.plug(a))
        else:
            networks.cut(a, b)
            self._after(action.seconds, lambda: networks.mend(a, b))

    def _lose(self, action: Lose) -> None:
        service = self._take(action.group)
        self._networks.remove(action.group)
        service.wait(scaled(10))

        def back() -> None:
            self._add_machine(action.group)
            self._start_supervisor(action.group)

        self._after(action.seconds, back)

    # --- events --------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        for e in self._tail.new():
            group, t = str(e.get("group")), float(e["t"])
            if e.get("role") == "supervisor" and e["event"] == "start":
                self.record.attempts[group] += 1
            if e.get("role") != "trainer" or int(e.get("rank", 0)) != 0:
                continue
            if e["event"] == "commit":
                self.record.committed(Commit(t, group, int(e["step"]) + 1, int(e["quorum"]), int(e["participants"])))
            elif e["event"] == "drop":
                self.record.dropped.add((int(e["step"]) + 1, int(e.get("quorum", 0))))
            elif e["event"] == "heal_begin":
                self._heals[group] = t

    def _tell(self, what: str) -> str:
        tails = []
        for log in sorted(self.run_dir.glob("*.log")):
            tails.append(f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]))
        newest = ", ".join(f"{c.group} at step {c.step} (q{c.quorum})" for c in self.record.newest.values())
        return "\n".join([*tails, f"{self._scenario.name}: {what}; {newest}; everything is in {self.run_dir}"])


@contextmanager
def cluster(scenario: Scenario, folder: Path, *, networks: bool) -> Iterator[Cluster]:
    """Run a cluster. At the end no process and no namespace of it is left."""
    with ExitStack() as stack:
        stage = Cluster(scenario, folder, stack.enter_context(Networks()) if networks else None)
        stack.callback(stage.close)
        stage.start()
        yield stage


def is_worker(pid: int) -> bool:
    """Return whether the process is a worker with the trainer's script.

    The command line alone does not tell: a forked worker shows that of the warm parent, and the process with the
    group's store has the script, too. Only a worker's output goes to its supervisor's file.
    """
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return (
            os.fsencode(TRAINER) in words
            and re.fullmatch(r"\d+\.out", Path(os.readlink(f"/proc/{pid}/fd/1")).name) is not None
        )
    except OSError:
        return False
