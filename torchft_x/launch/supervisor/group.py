"""Supervisor of one group: keeps its trainer running (base.py).

A group over several nodes has one on each; coordination.py describes how they start and end an attempt together.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchft_x import env
from torchft_x.core.types import State
from torchft_x.launch.job.checks import check_script
from torchft_x.launch.job.health import UNHEALTHY_HOST, failure, report_unhealthy
from torchft_x.launch.process.checkpoint_memory import CheckpointMemory, limit_of_slot, memory_of_host
from torchft_x.launch.process.restarts import AttemptEnd
from torchft_x.launch.supervisor.base import BaseSupervisor
from torchft_x.launch.supervisor.config import (
    SupervisorConfig,
    groups_here,
    trainer_environment,
)
from torchft_x.launch.supervisor.coordination import Attempts, MultiNode, StartedAttempt
from torchft_x.launch.supervisor.locate import FoundLighthouse, Reports
from torchft_x.launch.supervisor.requests import Stop
from torchft_x.launch.workers.attempt import Attempt, AttemptSpec
from torchft_x.launch.workers.collector import Collector, Incident, incident_of
from torchft_x.launch.workers.probe_worker import NoAnswerError, status
from torchft_x.launch.workers.warm_client import WarmParent
from torchft_x.timing import TIMING

_UNDER_ANOTHER = "it ended with an earlier supervisor of its group"


class Supervisor(BaseSupervisor):
    """Supervisor of one group, on the group's only node or on one of several."""

    config: SupervisorConfig

    def __init__(
        self, config: SupervisorConfig, connect: Callable[[FoundLighthouse], Reports], warm: WarmParent
    ) -> None:
        super().__init__(config, connect)
        self._warm: WarmParent = warm
        warm.report = lambda **fields: self._events.emit("warm", **fields)
        self._collector: Collector | None = None  # None without a run directory or worker servers
        self._incident: Incident | None = None  # incident of the attempt that runs or ran last
        self._memory: CheckpointMemory | None = None  # made with the first attempt, if copies are wanted
        if config.nodes == 1 and self._report.number is not None:
            self._number = self._report.number + 1
        self._first_number: int | None = None  # lowest number of the next attempt by the lighthouse; set by any thread

    def _run_attempts(self) -> Stop:
        """Run attempts once the lighthouse has sent the next one's number, without which an earlier one might fence it (R2)."""
        seconds = self.config.find_timeout
        if not self._stops.wait(lambda: self._first_number is not None, seconds) and self._found is not None:
            self._stops.request(1, f"No session with the lighthouse at {self._found.url} within {seconds:g} s.")
        stop = self._stops.first or super()._run_attempts()
        if self._memory is not None and self._reports is not None:
            self._reports.held(State())  # no group may wait for an attempt that goes on from a copy
        return stop

    def _live(self, attempts: Attempts) -> AttemptEnd | None:
        self._check_host()
        return None if self._stops.first is not None else super()._live(attempts)

    def _check_host(self) -> None:
        """Run the user's health command. If it fails, request a stop: the group ends, or moves to another host."""
        config, stops, fence = self.config, self._stops, self.config.launcher.fence
        if not config.health:
            return
        environ = trainer_environment(config, self._environ)
        why = failure(config.health, environ, self._scratch, lambda: stops.first is not None, stops.sleep)
        if why and fence is not None:  # slurm_ft: the batch script submits the group anew
            node = env.read(env.SLURM_NODE_NAME, None, self._environ) or socket.gethostname()
            try:
                report_unhealthy(Path(fence[0]).parent, node, fence[1], why)
                stops.request(UNHEALTHY_HOST, why, from_outside=True)
            except OSError as e:
                why = f"{why}; no other host is asked for, as the run directory can't be written ({e.strerror})"
        if why:
            stops.request(1, why)

    def _next_attempt(self) -> int:
        return max(self._number, self._first_number or 0)

    def _on_number(self, attempt: int) -> None:
        """Take the number of the next attempt from the lighthouse. Called on the client's thread."""
        self._first_number = max(attempt, self._first_number or 0)
        self._stops.wake()

    def _check_command(self) -> None:
        check_script(self.config.command[0])

    def _event_fields(self) -> dict[str, Any]:
        node = None if self.config.nodes == 1 else self.config.node
        return {"group": self.config.group, "node": node}

    # --- explanations of deaths and hangs (workers/collector.py) ------------------------------------------------------

    def _on_turn(self, attempt: Attempt, started: StartedAttempt, halt: tuple[str, float] | None) -> None:
        if halt is not None and self._reports is not None:
            self._reports.halted(started.attempt_token, *halt)
        if self._collector is None:
            return
        if self._incident is None:
            self._incident = self._collector.incident = incident_of(attempt, started.attempt_token)
        if halt is not None and halt[0]:
            self._collector.stopped(self._incident, *halt)
        if self._stops.first is not None:
            self._collector.incident = None
        self._say_findings()

    def _why_end(self, started: StartedAttempt) -> str:
        token, reason = self._collector.hung if self._collector is not None else ("", "")
        return reason if token == started.attempt_token else ""

    def _saving(self, attempt: Attempt) -> str:
        for target in incident_of(attempt, "").targets:
            try:
                if status(target)["paused"]:
                    return f"worker {target.rank}"
            except NoAnswerError:
                pass
        return ""

    def _before_end(self) -> None:
        if self._memory is not None and self._reports is not None:
            self._reports.held(self._memory.newest())

    def _on_end(self, started: StartedAttempt, end: AttemptEnd) -> None:
        incident, self._incident = self._incident, None
        if end.ok and not end.managed and env.read(env.WORKER_SERVER, None, self._environ) != "0":
            self._say(
                f"{self.config.whole} has ended well, but its script made no torchft_x.Manager: each group has trained for "
                "itself, and nothing was averaged. docs/write_a_script.md shows how to."
            )
        if self._collector is None or incident is None:
            return
        self._collector.incident = None
        if not end.ok and self._stops.first is None and not end.explained:
            self._collector.died(incident, end.reason)

    def _on_close(self) -> None:
        if self._memory is not None:
            self._memory.close()
        if self._collector is not None:
            self._collector.close()
            self._say_findings()

    def _say_findings(self) -> None:
        for folder, sentence in self._collector.take() if self._collector is not None else ():
            self._events.emit("dump", folder=str(folder), reason=sentence)
            self._say(
                f"{self.config.name}: {sentence} Collected in {folder}; see `torchft_x dumps {self.config.run_dir}`."
            )

    def _make_attempts(self, reports: Reports) -> Attempts:
        config, off = self.config, env.read(env.WORKER_SERVER, None, self._environ) == "0"
        if config.run_dir is not None and not off:
            self._collector = Collector(
                config.run_dir, config.group, config.groups, self._stops.wake, hang_timeout=config.hang_timeout
            )
        reports.callbacks.number, reports.callbacks.order = self._on_number, self._on_order
        if config.nodes == 1:
            last = self._report
            # Unreported, the others would wait for its lease: it might finish the job (R21).
            if last.number is not None:
                code = -signal.SIGKILL if last.code is None else last.code
                reports.exited(last.number, last.token, code, _UNDER_ANOTHER)
                if last.code is None:
                    about = {"attempt": last.number, "attempt_token": last.token}
                    self._events.emit("exit", **about, code=code, reason=_UNDER_ANOTHER)
            return Attempts(reports)
        return MultiNode(config, self._host, reports, self._stops, self._say)

    def _memory_slots(self) -> str:
        """Return the setting by which this node's workers find their memory for copies, or '' if copies are off."""
        config = self.config
        workers = config.workers // config.nodes
        if config.memory and self._memory is None:
            try:
                self._memory = CheckpointMemory(workers)
            except (OSError, AttributeError) as e:  # no memfd_create on this system, or no more descriptors
                self._events.emit("memory", reason=f"there is no memory for copies of the state: {e}")
        if self._memory is None:
            return "0" if config.memory else ""  # the group's workers on other nodes wait for a message from those here
        return self._memory.setting(limit_of_slot(memory_of_host(), config.memory, workers * groups_here(config)))

    def _before_start(self) -> None:
        """Wait for the warm parent's imports that have begun. A cold attempt would have to repeat all of them."""
        until = time.monotonic() + TIMING.warm_imports
        while self._warm.is_importing and self._stops.first is None:
            if time.monotonic() > until:
                self._warm.give_up(f"the warm parent's imports took longer than {TIMING.warm_imports:g} s")
            self._stops.sleep(until - time.monotonic(), self._warm.fds())

    def _spec(self, started: StartedAttempt, folder: Path) -> AttemptSpec:
        config = self.config
        assert self._found is not None
        attempt = env.AttemptEnv(
            number=started.attempt,
            token=started.attempt_token,
            folder=str(folder),
            memory_slots=self._memory_slots(),
            own_gpus=config.own_gpus,
            lighthouse_file=self._found.address_file,
        )
        return AttemptSpec(
            command=config.command,
            workers=config.workers // config.nodes,
            env=trainer_environment(config, self._environ, attempt, self._found, self._host),
            folder=folder,
            run_dir=config.run_dir,
            name=f"{config.file_name}-attempt-{started.attempt}",
            node=config.node,
            nodes=config.nodes,
            meeting=started.meeting,
            listener=started.listener,
            labels=self._labels("trainer"),
        )
