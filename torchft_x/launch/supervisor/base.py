"""Base of all supervisors: start processes, restart them, report to the lighthouse, leave no process behind.

A supervisor runs where its processes run (in their container, or as a process of the local scheduler) and outlives their
attempts. It joins no quorum and is never on the data path: if it can't reach the lighthouse, the trainer trains on.

Everything happens on the main thread, in a loop that a pipe, a process or a request to stop (requests.py) wakes.
"""

from __future__ import annotations

import logging
import math
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchft_x import env, last_words, log_lines, net
from torchft_x.errors import ConfigError, TorchftXError
from torchft_x.launch.job.run_claim import RunClaim
from torchft_x.launch.process import process_tree
from torchft_x.launch.process.restarts import AttemptEnd, GiveUp, RestartPolicy
from torchft_x.launch.supervisor.config import BaseConfig
from torchft_x.launch.supervisor.coordination import Attempts, StartedAttempt
from torchft_x.launch.supervisor.locate import FoundLighthouse, Locator, Reports
from torchft_x.launch.supervisor.requests import Stop, StopRequests, grace_is_over, watch_fence
from torchft_x.launch.workers import attempts_file
from torchft_x.launch.workers.attempt import Attempt, AttemptSpec
from torchft_x.launch.workers.probe_worker import SCRATCH
from torchft_x.launch.workers.warm_client import WarmParent
from torchft_x.observe.events import EventLog
from torchft_x.timing import POLL, TIMING


class BaseSupervisor:
    """Supervisor of one kind of process. Owns attempts and their reports; subclasses define the command and the policy.

    `connect` makes the client that reports to the lighthouse.
    """

    role = "supervisor"
    """Role of this process in the event log."""
    code_without_launcher = 128 + signal.SIGTERM
    """Exit code when the launcher is gone."""

    def __init__(self, config: BaseConfig, connect: Callable[[FoundLighthouse], Reports]) -> None:
        self.config = config  # fixed
        self._connect = connect
        self._environ: Mapping[str, str] = env.everything()
        self._reports: Reports | None = None  # None until the lighthouse is found
        self._found: FoundLighthouse | None = None
        self._stops = StopRequests(config.launcher.alive)
        # A person's newest orders. Each is set by the client's thread in one assignment, and read on the main thread.
        self._rests = False  # whether the group is drained, so that no attempt may run
        self._kill = ("", "")  # token of the attempt to kill, and the reason
        self._announced = False  # whether the reason for stopping has been logged
        self._attempts: Attempts | None = None  # None until the lighthouse is found
        self._attempt: Attempt | None = None  # the running attempt; None between attempts
        self._warm: WarmParent | None = None  # forks attempts, for a group whose script is Python
        self._number = 0  # number of the present attempt, or of the next one
        self._restarts = RestartPolicy(config.rules)
        # Newest content of the attempts file, at first by the supervisor that this one replaces.
        self._report = attempts_file.read(config.launcher.attempts_file)
        self._host = self._advertise()
        self._events = EventLog(None, self.role)  # replaced by `run`, once it may write to the run directory
        self._done_with: list[Path] = []  # folders of ended attempts, to be removed
        self._scratch = Path()  # for pipes; made by `run` outside the run directory, which may be NFS

    def _watch_for_stops(self) -> None:
        self._stops.watch_signals()
        launcher = self.config.launcher
        if launcher.fence is not None:
            watch_fence(*launcher.fence, lambda sentence: self._stops.request(1, sentence, from_outside=True))
        if self.config.local or launcher.launcher_pid is not None:
            self._stops.watch_launcher(launcher.launcher_pid, self.code_without_launcher)

    # --- the loop ------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run one attempt after the other until the work is done or given up; return the exit code. Main thread."""
        process_tree.become_subreaper()
        self._watch_for_stops()
        try:
            self._take_claim()
        except ConfigError as e:
            return self._finish(Stop(2, str(e)))
        self._events = self._event_log()
        self._scratch = Path(tempfile.mkdtemp(prefix=SCRATCH))
        try:
            stop = self._find_lighthouse()
            if stop is not None:
                return self._finish(stop)
            try:
                self._check_command()
            except ConfigError as e:
                return self._finish(Stop(2, str(e)))
            return self._finish(self._run_attempts())
        finally:
            if self._warm is not None:
                self._warm.close()
            process_tree.kill_descendants()
            self._close_reports()
            self._on_close()
            self._events.close()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _take_claim(self) -> None:
        """Claim the run directory for this job, and keep the claim. Raise `ConfigError` if it is another job's."""
        if self.config.run_dir is not None:
            claim = RunClaim(self.config.run_dir, self._environ, local=self.config.launcher.launcher_pid is not None)
            claim.take(lambda seconds: not self._stops.wait(lambda: False, seconds) and self._stops.first is not None)
            claim.keep(lambda sentence: self._stops.request(2, sentence))

    def _close_reports(self) -> None:
        """Flush and close the reports. A lighthouse that does not take the last one must not change how the group ends."""
        if self._reports is not None:
            try:
                self._reports.close(TIMING.flush if self._stops.first is None else TIMING.flush_stopped)
            except TorchftXError as e:
                self._say(f"{self.config.name}: the lighthouse did not take the last report: {e}")

    def _find_lighthouse(self) -> Stop | None:
        """Connect to the lighthouse, or return a request to stop. Raise `ConfigError` after `find_timeout` seconds."""
        config = self.config
        locator = Locator(config.run_dir, config.lighthouse, self._environ)
        began = time.monotonic()
        told = False
        while self._stops.first is None:
            self._found = locator.poll()
            if self._found is not None:
                self._host = self._advertise()  # the lighthouse's address tells which interface leads to it
                self._reports = self._connect(self._found)
                self._reports.callbacks.stop = self._stops.request
                self._attempts = self._make_attempts(self._reports)
                self._reports.start()
                return None
            waited = time.monotonic() - began
            if waited > config.find_timeout:
                raise ConfigError(f"Gave up after {waited:.0f} s waiting for {locator.missing}.")
            if waited > 5.0 and not told:
                told = True
                self._say(f"{config.name} waits for {locator.missing}")
            self._stops.sleep(POLL)
        return self._stops.first

    def _run_attempts(self) -> Stop:
        """Run one attempt after the other, and return the reason and exit code with which the group ends."""
        assert self._attempts is not None
        while True:
            if self._rests:
                self._rest()
            end = self._live(self._attempts) if self._stops.first is None else None
            if end is not None and end.ok:
                return Stop(0, "")
            if self._stops.first is not None:
                return self._stops.first
            assert end is not None  # only a request to stop leaves the end of an attempt unknown
            if end.asked and not self._rests:
                self._say(f"{self.config.whole} was {end.reason} after {end.uptime:.1f} s; it is started again")
                self._events.emit("restart", attempt=self._number + 1, delay=0.0, reason=end.reason)
            elif self._attempts.decides and not end.asked:
                over = self._restart_or_give_up(end)
                if over is not None:
                    return over
            self._number += 1

    def _on_order(self, kind: str, attempt_token: str, sentence: str) -> None:
        """Take a person's order, on the client's thread. Ignore a kind that this version does not know."""
        if kind == "kill":
            self._kill = (attempt_token, sentence)
        elif kind in ("drain", "resume"):
            self._rests = kind == "drain"
        self._stops.wake()

    def _rest(self) -> None:
        """Report that the group is drained, and wait until it is resumed or must stop."""
        assert self._reports is not None
        self._reports.rests(True)
        self._say(f"{self.config.whole} rests, as it was asked to; `torchft_x resume` starts it again")
        self._stops.wait(lambda: not self._rests, math.inf)
        if self._stops.first is None:
            self._reports.rests(False)
            self._say(f"{self.config.whole} is resumed")

    def _restart_or_give_up(self, end: AttemptEnd) -> Stop | None:
        """Apply the restart rules to a failed attempt, and wait for the back-off. Return None to start the next now."""
        pause = self._restarts.ended(end, time.monotonic())
        died = f"{self.config.whole} died: {end.reason} after {end.uptime:.1f} s"
        if isinstance(pause, GiveUp):
            self._say(died)
            for line in () if end.shown else end.last_words:
                self._say(f"    {line}")
            return Stop(1, pause.sentence)
        total = self.config.rules.max_restarts
        self._say(f"{died}; restart {self._restarts.count} of {total} in {pause:g} s")
        self._events.emit("restart", attempt=self._number + 1, delay=pause, reason=end.reason)
        self._write(replace(self._report, restarts=self._report.restarts + 1, reason=end.reason))
        self._stops.wait(lambda: False, pause)
        return self._stops.first

    def _live(self, attempts: Attempts) -> AttemptEnd | None:
        """Run one attempt with its reports, and return how it ended for the group, or None after a request to stop."""
        started = attempts.begin(self._next_attempt())
        if started is None:
            return None
        self._number = started.attempt
        folder = self._scratch / str(self._number)
        folder.mkdir()
        self._before_start()
        self._attempt = Attempt(self._spec(started, folder), self._warm)
        self._write(replace(self._report, number=started.attempt, token=started.attempt_token, code=None))
        self._tell_start(self._attempt, started)
        while self._done_with:
            shutil.rmtree(self._done_with.pop(), ignore_errors=True)
        end = self._watch(self._attempt, attempts, started)
        self._attempt = None
        self._before_end()
        attempts.ended(started, end)
        self._write(replace(self._report, code=0 if end.ok else end.code))
        self._on_end(started, end)
        about = {"attempt": started.attempt, "attempt_token": started.attempt_token}
        self._events.emit("exit", **about, code=end.code, reason=end.reason, duration=end.uptime)
        self._done_with.append(folder)  # removed once the next attempt runs, so that its start does not wait for a disk
        return attempts.outcome(started, end)

    def _write(self, report: attempts_file.AttemptsReport) -> None:
        self._report = report
        attempts_file.write(report, self.config.launcher.attempts_file)

    def _tell_start(self, attempt: Attempt, started: StartedAttempt) -> None:
        """Write the start to the event log, and log for people whether a restart was warm or cold."""
        how: dict[str, Any] = {}
        if self._warm is not None:
            how = {"warm": attempt.cold is None, "reason": attempt.cold}
        self._events.emit("start", attempt=started.attempt, attempt_token=started.attempt_token, **how)
        if how and self._restarts.count:
            manner = "cold: " + attempt.cold if attempt.cold is not None else "warm, from the pre-imported process"
            self._say(f"{self.config.name} is started {manner}")

    def _watch(self, attempt: Attempt, attempts: Attempts, started: StartedAttempt) -> AttemptEnd:
        """Wait until the attempt ends, by itself or because it is hung, killed, drained or stopped; return its end."""
        told: float | None = None  # monotonic time at which the attempt was told to stop
        drained: float | None = None  # monotonic time at which the attempt was asked to leave for a drain
        while True:
            end = attempt.poll()
            if end is not None:
                return _drained(end) if drained is not None and told is None else end
            halt = attempt.halt()
            self._on_turn(attempt, started, halt)
            leaves = told is not None or drained is not None
            why = self._why_end(started)
            if why and not leaves and not attempt.has_finished:
                return replace(attempt.kill(), ok=False, code=-signal.SIGKILL, reason=why, own_doing=False)
            token, asked = self._kill
            if token == started.attempt_token and told is None and not attempt.has_finished:
                end = replace(attempt.kill(), asked=True)
                return replace(end, ok=False, code=-signal.SIGKILL, reason=asked, own_doing=False)
            if self._rests and not leaves and not attempt.has_finished:
                drained = time.monotonic()
                self._say(f"{self.config.whole} is asked to leave at its next step boundary, and to rest")
                attempt.terminate()
            if self._stops.first is not None and told is None:
                told = time.monotonic()
                self._announce(self._stops.first)
                attempt.terminate()
            if attempt.has_finished and told is None and drained is None:
                attempts.finished(started)
            if self._time_is_over(attempt, attempts, started, told, drained):
                end = attempt.kill()
                return _drained(end) if drained is not None and told is None else end
            if self._warm is not None:
                self._warm.tend(attempt.spec.env, attempt.uptime)
            self._stops.sleep(POLL, attempt.fds())

    def _time_is_over(
        self, attempt: Attempt, attempts: Attempts, started: StartedAttempt, told: float | None, drained: float | None
    ) -> bool:
        """Return whether to kill this attempt now: it is over on other nodes, or its grace to leave has passed."""
        if told is not None:
            return self._stops.hurry or self._is_late(attempt, told)
        if drained is not None:
            return time.monotonic() > drained + self.config.drain_grace
        return attempts.is_over(started)

    def _is_late(self, attempt: Attempt, told: float) -> bool:
        """Return whether the grace of processes that were told to stop at the time `told` is over."""
        waited, config = time.monotonic() - told, self.config
        if not grace_is_over(waited, config.grace, config.notice, saves=False):
            return False
        saving = self._saving(attempt)
        late = grace_is_over(waited, config.grace, config.notice, saves=bool(saving))
        if late and saving:
            self._say(
                f"{config.name}: {saving} is still in a pause that it has announced (it saves its last step?) after {waited:.0f} s, "
                f"and is ended: who stopped it gives {config.notice:g} s in all ({env.NOTICE}). The checkpoint before counts."
            )
        return late

    def _advertise(self) -> str:
        """Return the host by which other groups reach this one. On one machine that is the loopback, which always resolves."""
        given = any(env.read(name, None, self._environ) for name in (env.ADVERTISE_HOST, env.ADVERTISE_INTERFACE))
        towards = None if self._found is None else self._found.addresses[0].url
        return net.advertise_host(
            "127.0.0.1" if self.config.local and not given else None, self._environ, towards=towards
        )

    def _next_attempt(self) -> int:
        """Return the lowest number that the next attempt may have."""
        return self._number

    # --- what is kept running ------------------------------------------------------------------------------------------

    def _check_command(self) -> None:
        """Raise `ConfigError` if the command can't be run."""
        raise NotImplementedError

    def _make_attempts(self, reports: Reports) -> Attempts:
        raise NotImplementedError

    def _spec(self, started: StartedAttempt, folder: Path) -> AttemptSpec:
        raise NotImplementedError

    def _event_fields(self) -> dict[str, Any]:
        """Return the fields that are in every line of the event log and of the program's log."""
        raise NotImplementedError

    def _before_start(self) -> None:
        """Prepare for the workers of an attempt that has begun; they are started next."""

    def _on_turn(self, attempt: Attempt, started: StartedAttempt, halt: tuple[str, float] | None) -> None:
        """Check the running attempt, once per turn of the loop. `halt` is the result of `Attempt.halt` in this turn."""

    def _why_end(self, started: StartedAttempt) -> str:
        """Return the reason, for people, for which this attempt must be killed now, or '' if it need not be."""
        return ""

    def _saving(self, attempt: Attempt) -> str:
        """Return the name, for people, of a worker in an announced pause (it may be saving its last step), or ''."""
        return ""

    def _before_end(self) -> None:
        """Act on the end of an attempt before the lighthouse is told of it."""

    def _on_end(self, started: StartedAttempt, end: AttemptEnd) -> None:
        """Act on the end of an attempt after the lighthouse was told of it."""

    def _on_close(self) -> None:
        """Release resources once no process is left."""

    # --- its end and its words -----------------------------------------------------------------------------------------

    def _finish(self, stop: Stop) -> int:
        """Report to the lighthouse and to people how this supervisor ends, and return its exit code."""
        if stop.code != 0:
            self._events.emit("error", reason=stop.sentence, code=stop.code)
        self._announce(stop)
        last_words.write(stop.code, stop.sentence, self.config.launcher.last_words)
        logging.getLogger("torchft_x").setLevel(logging.ERROR)  # the lighthouse may go away now, as it should
        final = self.config.launcher.no_restart_code
        if final is not None and stop.from_outside:
            return stop.code  # the scheduler will restart this supervisor, so the group isn't done
        if self._reports is not None:
            self._reports.done(stop.code, stop.sentence)
        return final if stop.code != 0 and final is not None else stop.code

    def _announce(self, stop: Stop) -> None:
        """Log once why the supervisor stops."""
        if stop.sentence and not self._announced:
            self._announced = True
            self._say(f"{self.config.name} stops: {stop.sentence}")

    def _say(self, text: str) -> None:
        line = log_lines.line(text, environ=self._environ, role=self.role, **self._event_fields())
        if self._attempt is not None:
            self._attempt.relay.say(line)
        else:
            log_lines.write(line, sys.stderr)

    def _labels(self, role: str) -> dict[str, Any] | None:
        """Return the labels for the log lines of a process with this role, or None if lines are not wanted as JSON."""
        return {"role": role, **self._event_fields()} if env.wants_json(self._environ) else None

    def _event_log(self) -> EventLog:
        try:
            return EventLog(self.config.run_dir, self.role, host=socket.gethostname(), **self._event_fields())
        except OSError as e:
            raise ConfigError(f"The run directory {self.config.run_dir} can't be written ({e.strerror}).") from None


def _drained(end: AttemptEnd) -> AttemptEnd:
    """Return this end as that of a drained attempt. However its workers ended, they were asked to: it is no failure."""
    return replace(end, ok=False, code=128 + signal.SIGTERM, reason="drained by request", own_doing=False, asked=True)
