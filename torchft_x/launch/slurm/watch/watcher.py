"""``torchft_x slurm-watch RUN_DIR``: restarts the lost parts of a slurm_ft job, while the job lasts.

A watcher needs no rights but its user's. Watchers run in the jobs themselves: beside the lighthouse, and beside the first
groups. One of them asks Slurm, once a second; the others read its note. The rules are in `launch.slurm.rules.restart`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchft_x import env, tls
from torchft_x.address_files import LIGHTHOUSE, read_address
from torchft_x.arguments import Parser
from torchft_x.errors import ConfigError, TorchftXError, UnreachableError
from torchft_x.launch.job.states import UnreadableError
from torchft_x.launch.slurm import store
from torchft_x.launch.slurm.controller import Controller, SlurmError
from torchft_x.launch.slurm.rules import values as a
from torchft_x.launch.slurm.rules.manifest import SUBMITTING, Manifest, Part
from torchft_x.launch.slurm.rules.queue import Row
from torchft_x.launch.slurm.rules.restart import JobRestarts
from torchft_x.launch.slurm.script import excluded
from torchft_x.launch.slurm.submit import SupersededError, read_script, submit_parts
from torchft_x.rpc.status_query import lighthouse_status
from torchft_x.timing import PATIENCE, TIMING


class Election:
    """Election of the one of a job's watchers that asks Slurm, by a note that all of them read.

    A watcher replaces the note each time that it has asked with success. One that sees another's note change stands by.
    Two may ask for a moment, when a stopped watcher goes on, so their actions must be safe to repeat. `me` is the name of
    this one, which must be unique.
    """

    def __init__(self, me: str) -> None:
        self._me = me
        self._count = 0  # number of notes written by this watcher
        self._seen = ""  # the other watcher's newest note
        self._since: float | None = None  # monotonic seconds since which that note has not changed

    def mine(self, note: str, now: float) -> bool:
        """Return whether this watcher must ask at `now` (monotonic seconds). `note` is the present note, '' if there is none."""
        if not note or note.partition(" ")[0] == self._me:
            self._since = None
            return True
        if self._since is None or note != self._seen:
            self._seen, self._since = note, now
        return now - self._since >= TIMING.watch_stale

    def note(self) -> str:
        """Return the next note of this watcher."""
        self._count += 1
        return f"{self._me} {self._count}"


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


def main(argv: list[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        prog="torchft_x slurm-watch",
        description="Start again what a job of slurm_ft has lost. The job's own scripts run this; another one does no harm.",
    )
    parser.add_argument("run_dir", type=Path, help="of the job")
    args = parser.parse_args(argv)
    try:
        return Watcher(args.run_dir, Controller(timeout=PATIENCE)).run()
    except KeyboardInterrupt:
        return 130


class Watcher:
    """Watcher of one job: asks Slurm and the lighthouse, has the rules decide, and carries out their actions.

    Raises `UnreadableError` if there is no such job.
    """

    def __init__(self, run_dir: Path, controller: Controller) -> None:
        self._run_dir = run_dir
        self._controller = controller
        store.read(run_dir)
        self._rules = JobRestarts()
        self._turn = Election(f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}")
        self._reporter = WatcherLog()
        self._my_turn = False
        self._rows: list[Row] = []  # rows of the queue from the last request
        self._asked = float("-inf")  # monotonic seconds of that request
        self._quiet = False  # whether the last turn had no actions, and all jobs in the queue ran

    def run(self) -> int:
        """Watch until the job is over, and return 0."""
        while True:
            began = time.monotonic()
            try:
                if not self._turn.mine(str(store.watcher_note(self._run_dir).get("note", "")), began):
                    self._my_turn = False
                elif not self._look():
                    return 0
            except UnreadableError as e:
                if e.missing:  # the run directory was removed
                    return 0
                self._reporter.trouble("manifest", str(e))
            except TorchftXError as e:
                self._reporter.trouble("slurm", str(e))
            time.sleep(max(0.05, TIMING.watch_each - (time.monotonic() - began)))

    def _look(self) -> bool:
        """Ask, decide and act once. Return False if the job is over."""
        manifest = store.read(self._run_dir)
        if manifest.cancelled or manifest.outcome is not None:
            return False
        is_fresh = self._quiet and time.monotonic() - self._asked <= TIMING.watch_quiet
        heard = self._heard(manifest) if is_fresh else None
        if heard is None or not _all_near(manifest, heard):
            self._rows, self._asked = self._controller.rows(app=manifest.app), time.monotonic()
            self._reporter.fine("slurm")
            heard = self._heard(manifest)  # asked after Slurm, so that a group's reports before its end are included
        rows = self._rows
        unix = time.time() - time.monotonic()
        if not self._my_turn:
            self._my_turn = True
            memory = store.watcher_note(self._run_dir).get("parts")
            self._rules.recall(memory, unix, store.lost_groups(self._run_dir))
            self._reporter.say(f"watches over the job in {self._run_dir}")
        actions = self._rules.poll(manifest, rows, heard, time.monotonic())
        self._write({"note": self._turn.note(), "parts": self._rules.remember(unix)})
        self._quiet = not actions and all(row.state == "RUNNING" for row in rows)
        for action in actions:
            self.act(action, manifest)
            if isinstance(action, a.Reschedule):
                time.sleep(TIMING.watch_each)  # an update was another request
        return True

    # --- what is done --------------------------------------------------------------------------------------------------

    def act(self, action: a.Action, manifest: Manifest) -> None:
        """Carry out an action. A failure is logged; the rules request the action again in the next turn."""
        try:
            if isinstance(action, a.Resubmit):
                self._submit(action, manifest)
            elif isinstance(action, a.SkipBeginTime):
                part = action.part
                if self._controller.exclude(part.job, self._excluded(part), start=True):
                    self._reporter.say(f"{part.name}: job {part.job} was requeued; it need not wait for its BeginTime")
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

    def _tell(self, action: a.ReportLost) -> None:
        try:
            store.tell_groups(store.read(self._run_dir), action.lost, action.back)
        except (TorchftXError, OSError):
            self._rules.not_told(action)
            raise
        for name, why in action.lost.items():
            self._reporter.say(f"{'group ' if name.isdecimal() else ''}{name} is given up: {why}")

    def _excluded(self, part: Part) -> list[str]:
        """Return the nodes that the user has excluded in the part's batch script, in Slurm's format, and unhealthy ones."""
        return [*excluded(read_script(part.script)), *store.unhealthy(self._run_dir)]

    # --- what there is -------------------------------------------------------------------------------------------------

    def _write(self, found: dict[str, Any]) -> None:
        """Write the note with our memory and the next decisions. Slurm has answered: else another watcher must be free to ask."""
        file = store.folder(self._run_dir) / store.WATCHER
        try:
            store.replace(file, json.dumps(found))
        except OSError as e:
            self._reporter.trouble("note", f"{file} can't be written ({e.strerror}): other watchers ask Slurm, too.")
        else:
            self._reporter.fine("note")

    def _heard(self, manifest: Manifest) -> a.LighthouseStatus | None:
        if not manifest.own_lighthouse:
            return None
        try:
            found = ask(manifest)
        except TorchftXError as e:
            if self._my_turn:  # in the first turn the lighthouse may be starting, too
                self._reporter.trouble("lighthouse", f"the lighthouse does not answer: {e}")
            return None
        self._reporter.fine("lighthouse")
        return found


def _all_near(manifest: Manifest, heard: a.LighthouseStatus) -> bool:
    """Return whether the supervisors of all groups were heard just now, so that Slurm need not be asked again."""
    alive = (part for part in manifest.groups if not part.gone)
    return all(len(heard.near(str(part.number), TIMING.watch_near)) == part.nodes for part in alive)


def ask(manifest: Manifest) -> a.LighthouseStatus:
    """Return the status from the lighthouse that serves. Raise `TorchftXError` if none does."""
    address = None
    with contextlib.suppress(OSError):
        address = read_address(Path(manifest.run_dir, LIGHTHOUSE))
    if address is None:
        raise UnreachableError("no address is written down yet")
    token = tls.use_token(env.read_token_file(manifest.token_file, manifest.token_file))
    try:
        return a.read_status(lighthouse_status(address, token, TIMING.watch_answer))
    except ValueError as e:
        raise UnreachableError(str(e)) from None
