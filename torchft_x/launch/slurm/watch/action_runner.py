"""Carries out the rules' decisions by Slurm's commands and in the run directory, and logs them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from torchft_x.errors import ConfigError, TorchftXError
from torchft_x.launch.slurm import store
from torchft_x.launch.slurm.controller import Controller, SlurmError
from torchft_x.launch.slurm.rules import actions as a
from torchft_x.launch.slurm.rules.manifest import SUBMITTING, Manifest, Part
from torchft_x.launch.slurm.rules.restart import JobRestarts
from torchft_x.launch.slurm.script import excluded
from torchft_x.launch.slurm.submit import SupersededError, read_script, submit_parts


class WatcherLog:
    """Log of a watcher. Prints each trouble once for as long as it lasts."""

    def __init__(self) -> None:
        self._troubles: dict[str, str] = {}  # subject -> sentence of its present trouble

    def trouble(self, what: str, sentence: str) -> None:
        if self._troubles.get(what) != sentence:
            self._troubles[what] = sentence
            self.say(sentence)

    def fine(self, what: str) -> None:
        if self._troubles.pop(what, None) is not None and what in ("slurm", "lighthouse"):
            self.say(f"{'Slurm' if what == 'slurm' else 'the lighthouse'} answers again")

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} torchft_x slurm-watch: {text.rstrip('.')}.", flush=True)


class ActionRunner:
    """Executor of one watcher's actions."""

    def __init__(self, run_dir: Path, controller: Controller, rules: JobRestarts, reporter: WatcherLog) -> None:
        self._run_dir = run_dir
        self._controller = controller
        self._rules = rules
        self._reporter = reporter

    def run(self, action: a.Action, manifest: Manifest) -> None:
        """Carry out an action. A failure is logged; the rules request the action again in the next turn."""
        try:
            if isinstance(action, a.Resubmit):
                self._submit(action, manifest)
            elif isinstance(action, a.SkipBeginTime):
                self._kick(action)
            elif isinstance(action, a.LiftExclusions):
                self._controller.exclude(action.part.job, self._excluded(action.part))
                self._reporter.say(
                    f"{action.part.name}: no other node is free; job {action.part.job} may use any again"
                )
            elif isinstance(action, a.Reschedule):
                self._controller.reschedule(action.part.job, f"{manifest.app}-{action.part.role}")
            elif isinstance(action, a.Cancel):
                self._controller.cancel(action.jobs)
            elif isinstance(action, a.ReportLost):
                self._tell(action)
            elif isinstance(action, a.RecordSubmission):
                found = dataclasses.replace(action.part, job=action.job)
                store.change(self._run_dir, lambda now: now.with_part(found) if action.part in now.parts else now)
        except (TorchftXError, OSError) as e:
            self._reporter.trouble(type(action).__name__, str(e))
        else:
            self._reporter.fine(type(action).__name__)

    def _submit(self, action: a.Resubmit, manifest: Manifest) -> None:
        part = action.part
        try:
            now = self._submitted(manifest, part, action.exclude)
        except SupersededError:
            return
        except (SlurmError, ConfigError):
            self._rules.refused(part, time.monotonic())
            raise
        new = now.part(part.role, part.number)
        off = f", not on {', '.join(action.exclude)}" if action.exclude else ""
        self._reporter.say(f"{part.name}: {action.why}; submitted anew as job {new.job if new else '?'}{off}")
        if part.job == SUBMITTING:
            return
        if action.exclude and part.nodes > 1:
            self._controller.kill(part.job)
        else:
            self._controller.cancel([part.job])

    def _submitted(self, manifest: Manifest, part: Part, exclude: Sequence[str]) -> Manifest:
        if exclude:
            try:
                return submit_parts(self._controller, manifest, [part], exclude=exclude)
            except SlurmError as e:
                if e.uncertain:
                    raise
                self._reporter.say(f"{part.name}: Slurm does not take it without {', '.join(exclude)} ({e})")
        return submit_parts(self._controller, manifest, [part])

    def _kick(self, action: a.SkipBeginTime) -> None:
        part = action.part
        if self._controller.start_now(part.job, self._excluded(part)):
            self._reporter.say(f"{part.name}: job {part.job} was requeued; it need not wait for its BeginTime")

    def _tell(self, action: a.ReportLost) -> None:
        try:
            store.tell_groups(store.read(self._run_dir), action.lost)
        except (TorchftXError, OSError):
            self._rules.not_told()
            raise
        for name, why in action.lost.items():
            self._reporter.say(f"{'group ' if name.isdecimal() else ''}{name} is given up: {why}")

    def _excluded(self, part: Part) -> list[str]:
        """Return the nodes that the user has excluded in the part's batch script, in Slurm's format, and unhealthy ones."""
        return [*excluded(read_script(part.script)), *store.unhealthy(self._run_dir)]
