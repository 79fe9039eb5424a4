"""Collects evidence of a death or a hang on this supervisor's host, without delaying the training and the restarts.

A thread reads the workers' status from shared memory once a second. When a worker stalls, is stopped or dies, it creates a
folder for the event (observe/dumps.py). It writes ``<group>-<rank>.status.json``, ``.stack.txt``, ``.fr.json``,
``.log.txt`` and ``.error.json`` for each worker that has them, and ``<group>.why.json`` for the group.
Every other supervisor that sees a new folder adds the files of its own workers. The supervisor that created the folder
reports the finding (observe/dumps.py) and the path in one line.

The main thread only passes incidents on and takes findings. It waits for nothing.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchft_x.atomic_file import replace_file
from torchft_x.launch.process import process_tree
from torchft_x.launch.process.environment import error_file
from torchft_x.launch.process.hangs import HangDetector, Usage, is_stalled, step_limit
from torchft_x.launch.workers import probe_worker
from torchft_x.launch.workers.attempt import Attempt
from torchft_x.launch.workers.probe_worker import NoAnswerError, Target, View
from torchft_x.observe import dumps
from torchft_x.observe.dumps import Frame, all_folders, is_fresh, open_folder, parse_stacks, place
from torchft_x.timing import POLL_SLOW, TIMING

_LOG_LINES = 50
_LOG_READ = 1 << 18  # bytes of a log's end that are searched for a worker's last lines
_ERROR_LIMIT = 1 << 16  # bytes of an error file that are read

Files = dict[str, bytes]  # suffix of the file's name, after the worker's -> content


@dataclass(frozen=True)
class Incident:
    """Attempt of a group on this node, with its workers. Immutable, so that the main thread can pass it on."""

    attempt_token: str  # token of the attempt
    targets: tuple[Target, ...]  # workers that were announced
    log: Path | None  # file with the workers' output
    ranks: bool  # whether the lines of the log begin with the rank
    folder: Path  # private folder of the attempt: the workers' status files, sockets and error files


def incident_of(attempt: Attempt, token: str) -> Incident:
    """Return the incident for an attempt with its present workers."""
    spec = attempt.spec
    targets = [Target(rank, pid, spec.folder) for rank, pid in sorted(attempt.pids.items())]
    return Incident(token, tuple(targets), attempt.log, spec.workers > 1 or spec.nodes > 1, spec.folder)


@dataclass
class _Event:
    why: str  # kind, in one word
    what: str  # name of the event, which is the same for all supervisors
    reason: str  # clause for people
    incident: Incident
    errors: dict[int, bytes] = field(default_factory=dict)  # error files of an attempt that died, by rank


class Collector:
    """Collector of evidence for one group on one node. Only the main thread calls its public methods."""

    def __init__(
        self, run_dir: Path, group: str, groups: int, wake: Callable[[], None], *, hang_timeout: float | None = None
    ) -> None:
        """Start the collector's thread. `hang_timeout` is that of `HangDetector`."""
        # The first four never change.
        self._run_dir = run_dir
        self._group = group
        self._groups = groups
        self._wake = wake  # wakes the main thread, for `take`
        self.incident: Incident | None = None  # the running attempt; replaced as a whole by the main thread
        self._events: deque[_Event] = deque()  # from the main thread to the collector's
        self._found: deque[tuple[Path, str]] = deque()  # from the collector's thread to the main thread
        self._stir = threading.Event()  # set when there is work
        self._closing = False
        self._done_in: set[str] = set()  # names of folders that have our part
        self._stalled: tuple[str, object] | None = None  # attempt and step of the newest stall
        self._views: dict[int, View] = {}  # by pid, of the attempt that was read last; only for the collector's thread
        self._hang_timeout = hang_timeout  # never changes
        self._hangs: tuple[str, HangDetector] | None = None  # token of an attempt, and the evidence of its hang
        # Token of the newest attempt that hangs and must be ended, and a phrase with the rank, its place and the duration;
        # set by the collector's thread, read by the main thread.
        self.hung = ("", "")
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
        self._thread.start()

    def stopped(self, incident: Incident, who: str, seconds: float) -> None:
        """Collect evidence about a worker that has been stopped for this many seconds."""
        reason = f"{who} has been stopped for {seconds:.0f} s"
        self._hand_over(_Event("stopped", f"{self._group}-{incident.attempt_token[:8]}", reason, incident))

    def died(self, incident: Incident, reason: str) -> None:
        """Collect evidence about an attempt that has failed. Its private folder may be removed after this call."""
        errors = {t.rank: error for t in incident.targets if (error := _error_file(incident, t.rank)) is not None}
        self._hand_over(_Event("died", f"{self._group}-{incident.attempt_token[:8]}", reason, incident, errors))

    def take(self) -> list[tuple[Path, str]]:
        """Return the new findings, each a folder and a sentence."""
        taken = []
        while self._found:
            taken.append(self._found.popleft())
        return taken

    def close(self, seconds: float = 2.0) -> None:
        """Finish the pending events without waiting for other supervisors, and end the thread, within `seconds`."""
        self._closing = True
        self._stir.set()
        self._thread.join(seconds)

    def _hand_over(self, event: _Event) -> None:
        self._events.append(event)
        self._stir.set()

    # --- the thread ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._stir.wait(POLL_SLOW)
            self._stir.clear()
            try:
                while self._events:
                    self._collect(self._events.popleft())
                if self._closing:
                    return
                incident = self.incident
                if incident is not None:
                    self._look_at(incident)
                    self._look_for_hang(incident)
                    for folder in all_folders(self._run_dir):
                        if folder.name not in self._done_in and is_fresh(folder):  # another supervisor's
                            self._put(folder, _Event("", "", "", incident))
            except Exception as e:  # such as a full disk or a malformed file, which must not affect the training
                self._say(self._run_dir / "dumps", f"collecting failed: {type(e).__name__}: {e}")
                if self._closing:
                    return

    def _look_at(self, incident: Incident) -> None:
        for pid in set(self._views) - {target.pid for target in incident.targets}:
            self._views.pop(pid).close()
        for target in incident.targets:
            said = self._read(target)
            if said is None or not probe_worker.goes_on(target):
                continue  # `stopped` and `died` report such workers; one that starts has no status yet
            if is_stalled(said) and self._stalled != (incident.attempt_token, said.get("step")):
                self._stalled = (incident.attempt_token, said.get("step"))
                seconds = float(said.get("step_seconds", 0.0))
                reason = f"no step for {seconds:.0f} s, the limit is {step_limit(said):.0f} s"
                self._collect(_Event("stalled", f"step-{said.get('step')}", reason, incident))

    def _look_for_hang(self, incident: Incident) -> None:
        """Set `hung` if the attempt hangs, after collecting its evidence."""
        if self._hangs is None or self._hangs[0] != incident.attempt_token:
            self._hangs = (
                incident.attempt_token,
                HangDetector(self._hang_timeout, self._hangs[1] if self._hangs is not None else None),
            )
        if self.hung[0] == incident.attempt_token:
            return
        hangs = self._hangs[1]
        said = {t: s for t in incident.targets if (s := self._read(t)) is not None}
        if not said or not all(map(probe_worker.goes_on, said)):  # `stopped` reports a stopped one
            return
        over = hangs.limit_passed(list(said.values()))
        pids = [t.pid for t in said]
        wants = hangs.wants_stacks(
            list(said.values()),
            lambda: Usage(*process_tree.usage(pids), {pid: process_tree.turns(pid) for pid in pids}),
            time.monotonic(),
        )
        if not (over or wants):
            return
        stacks = {t: _training_thread(t, s) for t, s in said.items()}
        if not over and not hangs.is_hung([str(frames) for frames in stacks.values()]):
            return
        # Prefer a rank that is not in our own code: one that is waits for the others of its group.
        ours = {t: any("/torchft_x/" in frame.file for frame in stacks[t][:2]) for t in said}
        still = min(said, key=lambda t: (bool(said[t].get("waits")), ours[t], not stacks[t], t.rank))
        seconds = min(float(s.get("step_seconds", 0.0)) for s in said.values())
        where = f" in {place(stacks[still])}" if stacks[still] else ""
        what = "no step" if over else "no step, nothing computed, read or written"
        reason = f"hung: rank {still.rank} stands still{where}; {what} for {seconds:.0f} s"
        self._collect(_Event("hung", f"{self._group}-{incident.attempt_token[:8]}", reason, incident))

    def _read(self, target: Target) -> dict[str, Any] | None:
        """Return the worker's status, or its last one if it is dead; None if it has none."""
        try:
            if target.pid not in self._views:
                self._views[target.pid] = View(target)
            return self._views[target.pid].read()
        except NoAnswerError:
            return None

    def _collect(self, event: _Event) -> None:
        """Write our part into the event's folder, set `hung`, and wait for the others' parts if the folder is new."""
        folder, new = open_folder(self._run_dir, event.why, event.what)
        self._put(folder, event)
        if event.why == "hung":
            self.hung = (event.incident.attempt_token, event.reason)
            self._wake()
        if new:
            until = time.monotonic() + TIMING.dump_others
            while time.monotonic() < until and not self._closing and not self._events:
                if len(list(folder.glob("*.why.json"))) >= self._groups:
                    break
                time.sleep(0.1)
            self._say(folder, dumps.headline(dumps.examine(dumps.read_folder(folder))))

    def _say(self, folder: Path, sentence: str) -> None:
        self._found.append((folder, sentence))
        self._wake()

    def _put(self, folder: Path, event: _Event) -> None:
        """Write our workers' part into the folder."""
        self._done_in.add(folder.name)
        began = time.time()
        stem = self._group.replace("/", "_")
        incident = event.incident
        missing = []
        # Of another group's event the collectives explain a stall or an abort. A dump of a recorder holds the GIL for 50 ms.
        recorder = bool(event.why) or "-stalled-" in folder.name
        recorder = recorder or any(b"abort" in path.read_bytes() for path in folder.glob("*.why.json"))
        for target in incident.targets:
            files = _ask_all(target, recorder) if event.why != "died" else {}
            if event.why == "died" and target.pid in self._views and (last := self._read(target)) is not None:
                files["status.json"] = json.dumps(last).encode()
            if target.rank in event.errors:
                files["error.json"] = event.errors[target.rank]
            log = _log_end(incident, target.rank)
            if log:
                files["log.txt"] = log
            if silent := files.pop("silent", b"").decode():
                missing.append(f"rank {target.rank} (process {target.pid}) does not answer: {silent}")
            for name, data in files.items():
                replace_file(folder / f"{stem}-{target.rank}.{name}", data)
        why: dict[str, object] = {"group": self._group, "attempt_token": incident.attempt_token}
        why |= {"why": event.why, "reason": event.reason, "t": began}
        why |= {"ranks": [t.rank for t in incident.targets], "missing": missing}
        first = min((t.rank for t in incident.targets), default=0)
        part = stem if first == 0 else f"{stem}-from-{first}"  # for the group's other nodes
        replace_file(folder / f"{part}.why.json", json.dumps(why))


def _ask_all(target: Target, recorder: bool) -> Files:
    """Return status, stacks and, if `recorder`, Flight Recorder of a worker; of a silent one the kernel's view, and why (``silent``)."""
    files: Files = {}
    said: dict[str, Any] = {}
    try:
        said = probe_worker.status(target)
        files["status.json"] = json.dumps(said).encode()
        if said["leaving"]:  # Python may end before it answers
            return files | {"stack.txt": probe_worker.kernel_view(target.pid).encode(), "silent": b"it is about to end"}
        files["stack.txt"] = probe_worker.ask(target, probe_worker.STACKS, TIMING.dump_answer)
        if recorder:
            files["fr.json"] = probe_worker.ask(target, probe_worker.RECORDER, TIMING.dump_answer)
    except NoAnswerError as e:
        files["silent"] = f"{e}; {probe_worker.why_silent(target.pid)}".encode()
        if "stack.txt" not in files:
            python = probe_worker.stacks_by_signal(target, said) if said else b""
            files["stack.txt"] = python + probe_worker.kernel_view(target.pid).encode()
    return files


def _training_thread(target: Target, said: dict[str, Any]) -> list[Frame]:
    """Return the stack of the worker's training thread, the innermost frame first, or none if it can't be read."""
    try:
        text = probe_worker.ask(target, probe_worker.STACKS, TIMING.dump_answer)
    except NoAnswerError:
        text = probe_worker.stacks_by_signal(target, said)
    return parse_stacks(text.decode("utf-8", "replace")).get(str(said.get("main_thread")), [])


def _error_file(incident: Incident, rank: int) -> bytes | None:
    """Return a rank's error file: torchelastic's (``@record``), else ours (train/introspection/setup.py), or None."""
    first = min(t.rank for t in incident.targets)
    for path in (error_file(incident.folder, rank - first), incident.folder / f"{rank}.error.json"):
        try:
            with path.open("rb") as f:
                return f.read(_ERROR_LIMIT)
        except OSError:
            continue
    return None


def _log_end(incident: Incident, rank: int) -> bytes:
    """Return the last lines of the worker's output."""
    if incident.log is None:
        return b""
    try:
        with incident.log.open("rb") as f:
            f.seek(max(0, os.fstat(f.fileno()).st_size - _LOG_READ))
            lines = f.read(_LOG_READ).splitlines(keepends=True)
    except OSError:
        return b""
    prefix = b"[rank %d] " % rank if incident.ranks else b""
    return b"".join([line for line in lines if line.startswith(prefix)][-_LOG_LINES:])
