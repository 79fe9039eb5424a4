"""The process that owns a job of this machine: ``torchft_x keep-job RUN_DIR APP_ID``, started by the scheduler local_ft.

It starts the roles' processes, restarts those that were killed (upkeep.py), and publishes the job's state (record.py). It
takes orders by signals: SIGTERM ends the job gracefully, a second one at once, and SIGUSR1 makes it read a request for
another number of groups. All its descendants end with it: it is their sub-reaper, supervisors end by themselves when it is
gone, and the kernel kills programs that aren't ours.

Everything happens on the main thread. Neither torch nor grpc is loaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable

from torchft_x import log_lines
from torchft_x.atomic_file import replace_file
from torchft_x.core.job.kept_groups import render
from torchft_x.core.messages.job import GroupsChanged, SupervisorFinished
from torchft_x.errors import ConfigError, TorchftXError
from torchft_x.launch.keeper import plan, record, upkeep
from torchft_x.launch.keeper.plan import JobPlan
from torchft_x.launch.keeper.roles import RoleProcess
from torchft_x.launch.keeper.upkeep import Outcome, Replica, outcome
from torchft_x.launch.process import process_tree
from torchft_x.launch.supervisor.requests import StopRequests
from torchft_x.net import boot_id
from torchft_x.observe.events import EventLog
from torchft_x.timing import POLL, POLL_SLOW, TIMING


class Keeper:
    """Owner of a job of this machine: starts its processes, restarts or ends them, and decides when the job is over."""

    def __init__(self, what: JobPlan) -> None:
        self._plan = what  # fixed
        self._folder = plan.folder(what.run_dir)
        self._stops = StopRequests(hurries=(signal.SIGINT, signal.SIGTERM))
        self._asked = False  # whether another number of groups was requested; set by a signal
        self._deferred = False  # whether such a request waits for the end of the groups that were told to leave
        self._processes: dict[tuple[str, int], RoleProcess] = {}  # by role and number, in the plan's order
        self._left: list[RoleProcess] = []  # processes that were told to leave, and have not ended yet
        trainer = what.trainer
        self._groups = len(trainer.replicas) // trainer.nodes if trainer else 0  # wanted number
        self._outcome: Outcome | None = None  # None while the job runs
        self._ending = False  # whether the job ends, so that no process is started
        self._created, self._pid = time.time(), record.pid_of(os.getpid())
        self._state, self._reason = "PENDING", ""  # the job's, see `JobRecord`
        self._answer = ("", "")  # answer to the last request for another number of groups, see `JobRecord`
        self._written: record.JobRecord | None = None
        self._events = EventLog(what.run_dir, "keeper", host=socket.gethostname())

    # --- start and end --------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run the job until it is over and no process of it is left, and return the exit code."""
        process_tree.become_subreaper()
        signal.signal(signal.SIGUSR1, self._on_request)
        self._stops.watch_signals()
        if self._plan.launcher is not None:
            self._stops.watch_launcher(self._plan.launcher, 128 + signal.SIGTERM)
        (self._folder / "attempts").mkdir(exist_ok=True)
        self._publish()
        self._events.emit("start")
        try:
            try:
                self._begin()
                self._outcome = self._keep()
            except ConfigError as e:
                self._outcome = Outcome("FAILED", str(e))
            self._say(f"the job is over: {self._outcome.state}. {self._outcome.reason}".rstrip())
            self._reason = self._outcome.reason  # its state is set once all processes have ended
            self._wind_down(self._outcome)
        finally:
            self._ending = True
            self._take(process_tree.kill_descendants())
            for process in (*self._processes.values(), *self._left):
                process.close()
            if self._outcome is None:
                self._outcome = Outcome("FAILED", f"The keeper has failed; its own words are in {self._folder}.")
            self._state, self._reason = self._outcome.state, self._outcome.reason
            self._publish()
            code = 0 if self._outcome.state == "SUCCEEDED" else 1
            self._events.emit("exit", code=code, reason=self._outcome.reason or None)
            self._events.close()
        return code

    def _begin(self) -> None:
        """Start all processes of the plan. Raise `ConfigError` on a failure; the caller must then kill those that run."""
        for role in self._plan.roles:
            for number, how in enumerate(role.replicas):
                self._processes[role.name, number] = RoleProcess(Replica(role, number), self._plan, how)
        self._write_groups()
        for process in self._processes.values():
            process.start(time.monotonic(), self._groups)
        self._state = "RUNNING"
        self._publish()

    def _keep(self) -> Outcome:
        while True:
            self._turn(POLL_SLOW)
            stop = self._stops.first
            if stop is not None:
                return Outcome("CANCELLED", stop.sentence)
            over = outcome([p.replica for p in self._processes.values()], self._last_words())
            if over is not None:
                return over
            if self._asked or (self._deferred and not self._left):
                self._asked = self._deferred = False
                self._scale()
            now = time.monotonic()
            for process in self._processes.values():
                due = process.replica.due
                if due is not None and due <= now:
                    process.start(now, self._groups)

    def _turn(self, seconds: float) -> None:
        """Publish the job's state, sleep until there is work, pass on output, and collect ended processes."""
        self._publish()
        everybody = [*self._processes.values(), *self._left]
        fds = [fd for p in everybody for fd in p.streams.fds()]
        pidfds = [p.pidfd for p in everybody if p.pid is not None]
        seconds = min(seconds, POLL_SLOW if None not in pidfds else POLL)
        dues = [p.replica.due - time.monotonic() for p in everybody if p.replica.due is not None]
        if not self._asked:
            self._stops.sleep(min([seconds, *dues]), [*fds, *(fd for fd in pidfds if fd is not None)])
        for process in everybody:
            process.streams.pump()
            process.poll()
            process.kill_the_late(time.monotonic())
        self._take(process_tree.reap())

    # --- ends ----------------------------------------------------------------------------------------------------------

    def _take(self, ended: dict[int, int]) -> None:
        """Handle the end of the collected pids, and kill the descendants that an ended process has left behind."""
        while True:
            everybody = [*self._processes.values(), *self._left]
            gone = [p for p in everybody if p.pid is not None and p.pid in ended]
            if not gone:
                return
            for process in gone:
                assert process.pid is not None
                code = ended.pop(process.pid)
                process.poll()
                process.ended()
                self._after(process, code)
            alive = [p.pid for p in everybody if p.pid is not None]
            ended |= process_tree.kill_descendants(2.0, keep=alive)

    def _after(self, process: RoleProcess, code: int) -> None:
        process.streams.pump()
        replica = process.replica
        sentence = replica.ended(code, time.monotonic())
        if self._ending and replica.due is not None:
            replica.due, replica.over = None, True
            return
        if sentence:
            process.streams.say(
                log_lines.line(f"torchft_x: {sentence}", environ=process.environ, role=replica.role.name)
            )
            self._say(sentence)
        if replica.due is not None:
            delay = max(0.0, replica.due - time.monotonic())
            self._events.emit("restart", group=replica.group or None, delay=delay, reason=sentence)
        elif replica.group and not self._ending:
            self._write_groups()
        if process in self._left:
            self._left.remove(process)
            process.close()

    def _last_words(self) -> dict[str, str]:
        return {
            p.replica.name: p.streams.last_line for p in self._processes.values() if p.replica.over and p.replica.code
        }

    def _wind_down(self, over: Outcome) -> None:
        """Wait for processes about to end, then stop the groups, then the lighthouses. The caller kills the rest."""
        self._ending = True
        everybody = [*self._processes.values(), *self._left]
        if any(p.replica.role.kind == "lighthouse" and p.replica.over for p in everybody):
            self._await(everybody, TIMING.keeper_last_words)
        for process in everybody:
            if not process.replica.over:
                process.replica.leaving = True
        last = [p for p in everybody if p.replica.role.kind == "lighthouse"]
        for some, grace in (
            ([p for p in everybody if p not in last], TIMING.keeper_grace),
            (last, TIMING.keeper_grace_lighthouse),
        ):
            for process in some:
                process.stop()
            self._await(some, grace)

    def _await(self, some: Iterable[RoleProcess], seconds: float) -> None:
        """Wait until these processes have ended or the time is over, which a second request to stop shortens."""
        deadline = time.monotonic() + seconds
        hurried = False
        while any(p.pid is not None for p in some):
            if self._stops.hurry and not hurried:
                hurried, deadline = True, min(deadline, time.monotonic() + TIMING.keeper_hurry)
                process_tree.send([p.pid for p in some if p.pid is not None], signal.SIGINT)
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._turn(min(left, POLL))

    # --- another number of groups --------------------------------------------------------------------------------------

    def _on_request(self, number: int, frame: object) -> None:
        self._asked = True
        self._stops.wake()

    def _scale(self) -> None:
        try:
            found = json.loads((self._folder / "wanted.json").read_text("utf-8"))
            ticket, wanted = str(found["ticket"]), int(found["replicas"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return  # the command that asked gives up after a while
        if self._left and wanted > self._groups:  # new groups may have the names of those that still leave
            self._deferred = True
            return
        try:
            self._have(wanted)
            self._answer = (ticket, "")
        except TorchftXError as e:
            self._answer = (ticket, str(e))

    def _have(self, wanted: int) -> None:
        """Change the number of groups. Raise `ConfigError`, without any change, if the job can't have so many."""
        trainers = {k: p for k, p in self._processes.items() if p.replica.role.kind == "trainer"}
        role = upkeep.check_scale(self._plan, wanted, [p.replica for p in trainers.values()])
        new = range(self._groups * role.nodes, wanted * role.nodes)
        devices = upkeep.share_devices(
            role, len(new), self._plan.devices, [p.environ for p in self._processes.values()]
        )
        go = [p for p in trainers.values() if p.replica.number >= wanted * role.nodes]
        self._groups = wanted
        for process in go:
            del self._processes[role.name, process.replica.number]
            process.replica.leaving = True
            self._left.append(process)
        for number, variables in zip(new, devices, strict=True):
            assert role.template is not None
            how = dataclasses.replace(role.template, env={**role.template.env, **variables})
            self._processes[role.name, number] = RoleProcess(Replica(role, number), self._plan, how)
        self._write_groups()  # before groups start or stop
        for number in new:
            self._processes[role.name, number].start(time.monotonic(), wanted)
        for process in go:
            process.stop(TIMING.keeper_grace)
            if process.pid is None:
                self._left.remove(process)
                process.close()
        self._events.emit("scale", groups=wanted)
        self._say(f"the job has {wanted} groups now")

    # --- its files -----------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Write job.json if anything has changed. A full disk or a removed directory does not end the job."""
        mine: dict[str, list[record.ReplicaRecord]] = {role.name: [] for role in self._plan.roles}
        for process in self._processes.values():
            mine[process.replica.role.name].append(process.record(self._groups))
        now = record.JobRecord(
            app_id=self._plan.app_id,
            session=self._plan.session,
            state=self._state,
            reason=self._reason,
            run_dir=self._plan.run_dir,
            log_dir=self._plan.log_dir,
            host=socket.gethostname(),
            boot=boot_id(),
            keeper=self._pid,
            launcher=self._plan.launcher,
            created=self._created,
            updated=0.0,
            groups=self._groups,
            roles=tuple(
                record.RoleRecord(name=role.name, kind=role.kind, replicas=tuple(mine[role.name]))
                for role in self._plan.roles
            ),
            answer=self._answer,
        )
        if now != self._written:
            with contextlib.suppress(OSError):
                record.write(dataclasses.replace(now, updated=time.time()))
                self._written = now

    def _write_groups(self) -> None:
        """Write groups.json for the job's own lighthouse: the wanted groups, and the supervisors that have ended for good."""
        over = [p.replica for p in self._processes.values() if p.replica.role.kind == "trainer" and p.replica.over]
        ends = ((0, "") if r.code == 0 else (1, f"its supervisor has {r.last_exit}") for r in over)
        ended = [SupervisorFinished(r.group, *end, r.node) for r, end in zip(over, ends, strict=True)]
        with contextlib.suppress(OSError):
            groups = GroupsChanged(tuple(map(str, range(self._groups))), tuple(ended))
            replace_file(self._folder / "groups.json", render(groups))

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the reader is gone, or the disk is full
            print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main(argv: list[str]) -> int:
    """Run ``torchft_x keep-job RUN_DIR APP_ID``, the keeper of the job with that plan, and return the exit code.

    Raise `ConfigError`, or `OSError` with the file's name.
    """
    run_dir, app_id = argv
    what = plan.read(run_dir, app_id)
    lock = os.open(plan.folder(run_dir) / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"Another job runs in the run directory {run_dir}; name another one.") from None
    except OSError as e:
        raise ConfigError(f"The run directory {run_dir} can't be locked ({e.strerror}); choose another one.") from None
    with contextlib.suppress(TorchftXError):  # put aside the record of the job before this one
        before = record.read(run_dir)
        if before.app_id != app_id and "/" not in before.app_id:
            os.replace(record.path_of(run_dir), record.path_of(run_dir, before.app_id))
    return Keeper(what).run()
