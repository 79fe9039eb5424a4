"""Processes of a job's roles: start, output and end of each. Used on the keeper's main thread."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from torchft_x import env
from torchft_x.arguments import option, set_option
from torchft_x.errors import ConfigError
from torchft_x.launch.keeper.plan import REPLICA, JobPlan, Process, folder
from torchft_x.launch.keeper.record import Pid, ReplicaRecord, pid_of
from torchft_x.launch.keeper.streams import Streams
from torchft_x.launch.keeper.upkeep import Replica
from torchft_x.launch.process import process_tree
from torchft_x.launch.process.group_store import SHIM
from torchft_x.launch.supervisor.lighthouse import hold_port
from torchft_x.launch.workers import attempts_file


class RoleProcess:
    """Process of one replica, restarted as needed. Owns the replica's output over all its processes."""

    def __init__(self, replica: Replica, plan: JobPlan, how: Process) -> None:
        self.replica = replica
        self._how = how
        self._args: Sequence[str] = how.args
        self._port: socket.socket | None = None  # a lighthouse's port is held, so that its next process has it, too
        if replica.role.kind == "lighthouse":
            any_port = () if "--bind" in how.args else ("--bind", "[::]:0")
            self._args, self._port = hold_port([*how.args, *any_port])
        self._plan = plan
        self.streams = Streams(Path(plan.log_dir, replica.role.name, str(replica.number)))
        self._attempts = folder(plan.run_dir) / "attempts" / f"{replica.role.name}-{replica.number}"
        self._attempts.unlink(missing_ok=True)  # of an earlier replica of that number
        self._report = attempts_file.AttemptsReport()
        self.pid: int | None = None  # None while no process runs
        self._known: Pid | None = None  # pid and start time; None while no process runs
        self.pidfd: int | None = None  # readable when the process ends
        self._kill_at: float | None = None  # monotonic time of the SIGKILL, once stopped with a deadline

    def command(self, groups: int) -> list[str]:
        """Return the process's command in a job of so many groups."""
        kind, starts = self.replica.role.kind, self.replica.starts
        words = [word.replace(REPLICA, str(self.replica.number)) for word in self._args]
        if kind == "trainer":
            set_option(words, "--groups", str(groups))
        if kind == "lighthouse" and starts:
            set_option(words, "--attempt", str(starts))  # groups may know an earlier lighthouse
        if kind == "lighthouse" and self._plan.own_lighthouse:
            set_option(words, "--groups_file", str(folder(self._plan.run_dir) / "groups.json"))
        if kind:
            set_option(words, "--launcher_pid", str(os.getpid()))
            set_option(words, "--attempts_file", str(self._attempts))
            if option(words, "--no_restart_code") is None:  # any other code: an end from outside, not reported
                set_option(words, "--no_restart_code", "1")
        return words

    def close(self) -> None:
        """Close the output, and release the port."""
        self.streams.close()
        if self._port is not None:
            self._port.close()

    @property
    def environ(self) -> dict[str, str]:
        return self._how.env

    def start(self, now: float, groups: int) -> None:
        """Start the process at `now` (monotonic seconds). Raise `ConfigError` if the program is missing or not executable."""
        command = self.command(groups)
        own = {name: value.replace(REPLICA, str(self.replica.number)) for name, value in self._how.env.items()}
        inherited = env.everything()  # the rest is as TorchX's local scheduler makes it
        environ = {"PYTHONUNBUFFERED": "x", **inherited, **own}
        environ["PATH"] = os.pathsep.join(e["PATH"].strip(os.pathsep) for e in (own, inherited) if e.get("PATH"))
        if shutil.which(command[0], path=environ.get("PATH")) is None:
            raise ConfigError(f"{self.replica.name}: the program {command[0]} is not there, or can't be executed.")
        ours = bool(self.replica.role.kind)  # ends by itself when the keeper is gone; other programs are killed
        shim = [] if ours else [sys.executable, "-S", SHIM, "server", str(os.getpid())]
        process = subprocess.Popen(
            [*shim, *command],
            env=environ,
            cwd=self._how.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        process.returncode = 0  # collected by the keeper (process_tree.reap), not by Popen
        self.streams.attach(process)
        self.pid, self._known = process.pid, pid_of(process.pid)
        self.pidfd = process_tree.open_pidfd(process.pid)
        self._kill_at = None
        self.replica.started(now)

    def ended(self) -> None:
        """Forget the process after it was collected."""
        if self.pidfd is not None:
            os.close(self.pidfd)
        self.pid = self._known = self.pidfd = None

    def stop(self, grace: float | None = None) -> None:
        """Send SIGTERM. With `grace`, `kill_the_late` sends SIGKILL when so many seconds have passed."""
        if self.pid is not None:
            process_tree.send([self.pid], signal.SIGTERM)
            self._kill_at = None if grace is None else time.monotonic() + grace

    def kill_the_late(self, now: float) -> None:
        if self.pid is not None and self._kill_at is not None and now > self._kill_at:
            process_tree.send([self.pid], signal.SIGKILL)

    def poll(self) -> None:
        """Read the supervisor's attempts file."""
        self._report = attempts_file.read(self._attempts)

    def record(self, groups: int) -> ReplicaRecord:
        replica = self.replica
        return ReplicaRecord(
            id=replica.number,
            state=replica.state,
            command=tuple(self.command(groups)),
            group=replica.group,
            node=replica.node,
            process=self._known,
            starts=replica.starts,
            restarts=self._report.restarts,
            last_exit=replica.last_exit or self._report.reason,
            code=replica.code,
        )
