"""``torchft_x slurm-watch RUN_DIR``: starts again what a job of slurm_ft has lost, while the job lasts.

It needs no rights but its user's, and runs in the jobs themselves: beside the lighthouse, and beside the first groups. One of
them asks Slurm, once a second; the others look at its note. The rules are in `core.slurm.restart`.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchft_x import env
from torchft_x.arguments import Parser
from torchft_x.core.slurm import actions as a
from torchft_x.core.slurm.manifest import SUBMITTING, Manifest, Part
from torchft_x.core.slurm.queue import expand_nodes
from torchft_x.core.slurm.restart import Restarts
from torchft_x.core.slurm.turn import Turn
from torchft_x.errors import AddressError, ConfigError, TorchftXError
from torchft_x.launch.slurm import store
from torchft_x.launch.slurm.controller import Controller, SlurmError
from torchft_x.launch.slurm.script import excluded
from torchft_x.launch.slurm.submit import SupersededError, read_script, settle, submit_parts
from torchft_x.net import Address, parse_address
from torchft_x.rpc.status_query import lighthouse_status

EACH = 1.0
"""Seconds between two questions to Slurm, at the least."""
_ANSWER = 1.5  # seconds for the lighthouse to answer
_PATIENCE = 10.0  # seconds for a command of Slurm's


def main(_command: str, argv: list[str]) -> int:
    """The exit code."""
    parser = Parser(
        prog="torchft_x slurm-watch",
        description="Start again what a job of slurm_ft has lost. The job's own scripts run this; another one does no harm.",
    )
    parser.add_argument("run_dir", type=Path, help="of the job")
    args = parser.parse_args(argv)
    try:
        return Watcher(args.run_dir, Controller(timeout=_PATIENCE)).run()
    except KeyboardInterrupt:
        return 130
    except TorchftXError as e:
        print(f"torchft_x slurm-watch: {e}", file=sys.stderr)
        return 2


class Watcher:
    """Raises `ManifestError` if there is no such job."""

    def __init__(self, run_dir: Path, controller: Controller) -> None:
        self._run_dir = run_dir
        self._controller = controller
        store.read(run_dir)
        self._rules = Restarts()
        self._turn = Turn(f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}")
        self._note = store.folder(run_dir) / "watcher"
        self._troubles: dict[str, str] = {}  # what is wrong now, by what it concerns; each is said once
        self._my_turn = False
        self._memory = store.folder(run_dir) / "watcher.json"
        self._remembered = ""  # what stands there, of mine

    def run(self) -> int:
        """Until the job is over; then 0."""
        while True:
            began = time.monotonic()
            try:
                if not self._turn.mine(self._read_note(), began):
                    self._my_turn = False
                elif not self._look():
                    return 0
            except store.ManifestError as e:
                if e.missing:  # the run directory was removed
                    return 0
                self._trouble("manifest", str(e))
            except TorchftXError as e:
                self._trouble("slurm", str(e))
            time.sleep(max(0.05, EACH - (time.monotonic() - began)))

    def _look(self) -> bool:
        """Ask, decide, act; False: the job is over."""
        manifest = store.read(self._run_dir)
        rows = self._controller.rows(app=manifest.app)
        self._fine("slurm")
        self._write_note()
        nodes: dict[str, str] = {}
        if self._rules.wants_nodes(manifest, rows):
            nodes = self._controller.node_states()
            time.sleep(EACH)  # that was another question
        heard = self._heard(manifest) if manifest.own_lighthouse else None
        for action in self._rules.look(manifest, rows, heard, nodes, time.monotonic()):
            if isinstance(action, a.Over):
                return False
            self._do(action, manifest)
        self._remember()
        return True

    # --- what there is -------------------------------------------------------------------------------------------------

    def _read_note(self) -> str:
        try:
            return self._note.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return ""

    def _write_note(self) -> None:
        """Only after Slurm has answered: who can't reach it must not keep others from asking."""
        if not self._my_turn:
            self._my_turn = True
            unix = time.time() - time.monotonic()
            self._rules.recall(_read_json(self._memory), unix, store.lost_groups(self._run_dir))
            self._say(f"watches over the job in {self._run_dir}")
        self._write(self._note, self._turn.note(), "other watchers will ask Slurm, too")

    def _remember(self) -> None:
        text = json.dumps(self._rules.remember(time.time() - time.monotonic()))
        if text != self._remembered and self._write(self._memory, text, "another watcher will know less"):
            self._remembered = text

    def _write(self, path: Path, text: str, otherwise: str) -> bool:
        other = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            other.write_text(text, "utf-8")
            os.replace(other, path)
        except OSError as e:
            self._trouble(path.name, f"{path} can't be written ({e.strerror}): {otherwise}.")
            return False
        self._fine(path.name)
        return True

    def _heard(self, manifest: Manifest) -> a.Heard | None:
        """From the lighthouse that serves."""
        why = "no address is written down yet"
        for address in lighthouses(self._run_dir):
            try:
                token = env.read_token_file(manifest.token_file, manifest.token_file)
                found = a.heard_from(lighthouse_status(address, token, _ANSWER))
            except (TorchftXError, ValueError) as e:
                why = str(e)
                continue
            self._fine("lighthouse")
            return found
        self._trouble("lighthouse", f"the lighthouse does not answer: {why}")
        return None

    # --- what is done --------------------------------------------------------------------------------------------------

    def _do(self, action: a.Action, manifest: Manifest) -> None:
        """What fails is said, and comes again with the next look."""
        try:
            if isinstance(action, a.Anew):
                self._submit(action, manifest)
            elif isinstance(action, a.Kick):
                self._kick(action)
            elif isinstance(action, a.Release):
                self._exclude(action.part, action.exclude)
                if self._controller.release(action.part.job):
                    self._say(f"{action.part.name}: its launch had failed; job {action.part.job} is released")
            elif isinstance(action, a.Lift):
                self._exclude(action.part, ())
                self._say(f"{action.part.name}: no other node is free; job {action.part.job} may use any again")
            elif isinstance(action, a.Cancel):
                self._controller.cancel(action.jobs)
            elif isinstance(action, a.TellLost):
                self._tell(action)
            elif isinstance(action, a.Settle):
                settle(self._controller, self._run_dir)
        except (TorchftXError, OSError) as e:
            self._trouble(type(action).__name__, str(e))
        else:
            self._fine(type(action).__name__)

    def _submit(self, action: a.Anew, manifest: Manifest) -> None:
        part = action.part
        try:
            now = self._submitted(manifest, part, action.exclude)
        except SupersededError:
            return
        except (SlurmError, ConfigError):
            self._rules.refused(part, time.monotonic())
            raise
        self._rules.submitted(part)
        new = now.part(part.role, part.number)
        off = f", not on {', '.join(action.exclude)}" if action.exclude else ""
        self._say(f"{part.name}: {action.why}; submitted anew as job {new.job if new else '?'}{off}")
        if part.job != SUBMITTING:
            self._controller.cancel([part.job])

    def _submitted(self, manifest: Manifest, part: Part, exclude: Sequence[str]) -> Manifest:
        if exclude:
            try:
                return submit_parts(self._controller, manifest, [part], exclude=exclude)
            except SlurmError as e:
                if e.uncertain:
                    raise
                self._say(f"{part.name}: Slurm does not take it without {', '.join(exclude)} ({e})")
        return submit_parts(self._controller, manifest, [part])

    def _kick(self, action: a.Kick) -> None:
        part = action.part
        if not action.exclude:
            done = self._controller.start_now(part.job)
        else:
            try:
                done = self._controller.start_now(part.job, [*_own_excluded(part), *action.exclude])
            except SlurmError:  # there are no other nodes
                done = self._controller.start_now(part.job)
        if done:
            off = f", not on {', '.join(action.exclude)}" if action.exclude else ""
            self._say(f"{part.name}: job {part.job} was requeued; it need not wait for its BeginTime{off}")

    def _exclude(self, part: Part, nodes: Sequence[str]) -> None:
        self._controller.exclude(part.job, [*_own_excluded(part), *nodes])

    def _tell(self, action: a.TellLost) -> None:
        store.tell_groups(store.read(self._run_dir), action.lost)
        for name, why in action.lost.items():
            self._say(f"group {name} is given up: {why}")

    # --- what is said --------------------------------------------------------------------------------------------------

    def _trouble(self, what: str, sentence: str) -> None:
        if self._troubles.get(what) != sentence:
            self._troubles[what] = sentence
            self._say(sentence)

    def _fine(self, what: str) -> None:
        if self._troubles.pop(what, None) is not None and what in ("slurm", "lighthouse"):
            self._say(f"{'Slurm' if what == 'slurm' else 'the lighthouse'} answers again")

    def _say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} torchft_x slurm-watch: {text.rstrip('.')}.", flush=True)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def lighthouses(run_dir: Path) -> list[Address]:
    """What is written down of where they are."""
    several = run_dir / "lighthouses"
    try:
        names = sorted(entry.name for entry in several.iterdir() if entry.name.isdigit())
    except OSError:
        names = []
    found = []
    for file in [several / name for name in names] or [run_dir / "lighthouse"]:
        try:
            found.append(parse_address(file.read_text("utf-8").strip(), what=str(file)))
        except (OSError, UnicodeDecodeError, AddressError):
            continue
    return found


def _own_excluded(part: Part) -> list[str]:
    """What the user has excluded."""
    try:
        return [node for text in excluded(read_script(part.script)) for node in expand_nodes(text)]
    except ConfigError:
        return []
