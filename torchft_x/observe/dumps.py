"""Evidence that a job's supervisors collect of one event, in a folder ``RUN_DIR/dumps/<n>-<why>-<what>``, in sentences.

The supervisors share only the run directory. The first one that notices an event creates the folder, and the others add
their parts. `what` names the event and is the same for all of them (a group's attempt, a step). docs/operate.md lists the
folder's files. Files may be missing or torn; the readable ones are used.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchft_x.observe.collectives import BETWEEN, Finding, Op, Who, by_group, compare, names
from torchft_x.timing import RECENT

_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.+)$')
_LIBRARIES = re.compile(r"/(site|dist)-packages/|/lib/python\d|/torchft_x/|^<frozen ")
_FILE = re.compile(r"^(?P<group>.+)-(?P<rank>\d+)\.(?P<kind>status\.json|stack\.txt|fr\.json|log\.txt|error\.json)$")
_SHOWN = 12  # log lines that are shown of a worker that died
_DECISIONS = 3  # newest decisions of a group that are shown
KEPT = 20
"""Number of folders that are kept; the oldest are removed."""


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.short}:{self.line})"

    @property
    def short(self) -> str:
        """File name, with its folder if the file is a library's."""
        return "/".join(self.file.split("/")[-2:]) if self.is_library else self.file.rsplit("/", 1)[-1]

    @property
    def is_library(self) -> bool:
        """Whether the file is Python's, an installed package's or ours, and so not the user's."""
        return _LIBRARIES.search(self.file) is not None


def parse_stacks(text: str) -> dict[str, list[Frame]]:
    """Return the frames that ``faulthandler`` printed, by thread id (as printed), the innermost first."""
    threads: dict[str, list[Frame]] = {}
    frames: list[Frame] = []
    for line in text.splitlines():
        if found := _THREAD.match(line):
            frames = threads.setdefault(found[1], [])
        elif found := _FRAME.match(line):
            frames.append(Frame(found[1], int(found[2]), found[3]))
    return threads


def place(frames: list[Frame]) -> str:
    """Describe a thread's position for people: the innermost frame, and the user's function that led there."""
    if not frames:
        return ""
    theirs = next((f for f in frames if not f.is_library), None)
    if theirs is None or theirs == frames[0]:
        return str(frames[0])
    return f"{frames[0]}, called from {theirs}"


@dataclass
class Worker:
    """Files collected of one worker."""

    status: dict[str, Any] = field(default_factory=dict)
    stack: str = ""
    recorder: dict[str, Any] = field(default_factory=dict)
    log: str = ""
    error: dict[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Position of its main thread in the code; '' if unknown."""
        return place(parse_stacks(self.stack).get(str(self.status.get("main_thread")), []))

    @property
    def last_error(self) -> str:
        """The exception that ended the worker, in one line; '' if unknown."""
        message = self.error.get("message")
        text = message.get("message") if isinstance(message, dict) else message
        return str(text or "").strip().splitlines()[0] if text else ""


@dataclass(frozen=True)
class Dump:
    """Content of a folder of dumps."""

    path: str
    whys: list[dict[str, Any]]  # group, why, reason, missing of each supervisor; the folder's maker comes first
    workers: dict[Who, Worker]


def read_folder(folder: str | os.PathLike[str]) -> Dump:
    """Read all readable files of a folder."""
    workers: dict[Who, Worker] = {}
    whys = []
    stems: dict[str, str] = {}  # group ids by the group's name in file names
    for path in sorted(Path(folder).iterdir()):
        if path.name.endswith(".why.json") and not path.name.startswith("."):
            why = _json(path)
            whys.append(why)
            stems[str(why.get("group", "")).replace("/", "_")] = str(why.get("group", ""))
    for path in sorted(Path(folder).iterdir()):
        found = _FILE.match(path.name)
        if found is None or path.name.startswith("."):
            continue
        worker = workers.setdefault((stems.get(found["group"], found["group"]), int(found["rank"])), Worker())
        kind = found["kind"]
        if kind == "stack.txt":
            worker.stack = _text(path)
        elif kind == "log.txt":
            worker.log = _text(path)
        else:
            setattr(worker, {"status.json": "status", "fr.json": "recorder", "error.json": "error"}[kind], _json(path))
    whys.sort(key=lambda why: (not why.get("why"), float(why.get("t") or 0.0)))
    return Dump(str(folder), whys, workers)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_text(path))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def examine(dump: Dump) -> list[str]:
    """Return the findings, the most telling first. A sentence that begins with a name begins with a small letter."""
    return [*_deaths(dump), *_halts(dump), *_collectives(dump), *_unexplained(dump), *_missing(dump)]


def headline(findings: list[str]) -> str:
    """Return the first finding as one line for the log."""
    if not findings:
        return "Nothing conspicuous was found."
    return findings[0][:1].upper() + findings[0][1:].rstrip(".") + "."


def _deaths(dump: Dump) -> Iterator[str]:
    for why in dump.whys:
        if why.get("why") != "died":
            continue
        group = str(why.get("group"))
        errors = {rank: w.last_error for (g, rank), w in dump.workers.items() if g == group and w.last_error}
        told = "".join(f"; rank {rank}: {error}" for rank, error in sorted(errors.items())[:3])
        yield f"group {group} died: {why.get('reason')}{told}"


def _halts(dump: Dump) -> Iterator[str]:
    for why in dump.whys:
        if why.get("why") == "stopped":
            yield f"group {why.get('group')} stands still: {why.get('reason')} (SIGSTOP or a debugger)"
        elif why.get("why") == "hung":
            yield f"group {why.get('group')} {why.get('reason')}; it is ended and started again"


def _collectives(dump: Dump) -> Iterator[str]:
    logs: dict[tuple[str, str], dict[Who, list[Op]]] = {}  # by (process group, instance of it)
    configs = {who: w.status.get("config") for who, w in dump.workers.items() if w.recorder}
    for who, worker in dump.workers.items():
        if not worker.recorder:
            continue
        found = by_group(worker.recorder, float(worker.status.get("configured") or 0.0))
        if len(worker.status.get("members") or ()) > 1:
            found.setdefault(BETWEEN, [])
        for name, ops in found.items():
            instance = f"{who[1]} {configs[who]}" if name == BETWEEN else who[0]
            logs.setdefault((name, instance), {})[who] = ops
    for (name, instance), members in sorted(logs.items()):
        where = BETWEEN if name == BETWEEN else f"in {name} of group {instance}"
        finding = compare(where, members)
        if finding is not None:
            yield finding.sentence + _places(dump, finding)
    if len({c for c in configs.values() if c is not None}) > 1:
        told = "; ".join(f"{names([w])}: {c}" for w, c in sorted(configs.items()))
        yield f"the workers are in different configurations of the process group ({told})"


def _places(dump: Dump, finding: Finding) -> str:
    told = [
        f"{names([who])} is in {dump.workers[who].place}" for who in sorted(finding.guilty) if dump.workers[who].place
    ]
    return "".join(f"; {t}" for t in told[:3])


def _unexplained(dump: Dump) -> Iterator[str]:
    """Describe steps that lasted too long, with the positions of the workers."""
    for why in dump.whys:
        if why.get("why") == "stalled":
            group = str(why.get("group"))
            places = [
                f"rank {rank} is in {w.place}"
                for (g, rank), w in sorted(dump.workers.items())
                if g == group and w.place
            ]
            yield f"group {group} stalls: {why.get('reason')}" + "".join(f"; {p}" for p in places[:3])


def _missing(dump: Dump) -> Iterator[str]:
    for why in dump.whys:
        for sentence in why.get("missing") or ():
            yield f"group {why.get('group')} {sentence}"
    here = {str(why.get("group")) for why in dump.whys}
    members = {str(m).partition(":")[0] for w in dump.workers.values() for m in w.status.get("members") or ()}
    for group in sorted(members - here):
        yield f"nothing was collected of group {group}: its supervisor is gone, or does not see this run directory"


def describe(dump: Dump) -> list[str]:
    """Return the whole dump as lines for people."""
    lines = [f"{dump.path}", *(f"  * {sentence}" for sentence in examine(dump))]
    if dump.workers:
        lines.append("  where they were:")
    for who, worker in sorted(dump.workers.items()):
        s = worker.status
        at = f"step {s.get('step')}, {s.get('phase')}, for {s.get('step_seconds')} s" if s else "no status"
        lines.append(f"    {names([who])}: {at}" + (f", in {worker.place}" if worker.place else ""))
        if s.get("error"):
            lines.append(f"      its newest error: {s['error']}")
        if isinstance(s.get("story"), list):
            lines += [f"      its group, {line}" for line in s["story"][-_DECISIONS:]]
    dead = {str(why.get("group")) for why in dump.whys if why.get("why") == "died"}
    for who, worker in sorted(dump.workers.items()):
        if who[0] in dead and worker.log:
            lines.append(f"  last lines of {names([who])}:")
            lines += [f"    {line}" for line in worker.log.splitlines()[-_SHOWN:]]
    return lines


def number(folder: Path) -> int:
    """Return the number in a folder's name, or 0 if the folder is not one of ours."""
    found = re.match(r"(\d+)-", folder.name)
    return int(found[1]) if found else 0


def all_folders(run_dir: Path) -> list[Path]:
    """Return our folders, in the order of their numbers."""
    try:
        with os.scandir(run_dir / "dumps") as entries:
            found = [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return []
    return sorted((f for f in found if number(f)), key=number)


def is_fresh(folder: Path) -> bool:
    try:
        return time.time() - folder.stat().st_mtime < RECENT
    except OSError:
        return False


def open_folder(run_dir: Path, why: str, what: str) -> tuple[Path, bool]:
    """Return the folder of an event, and whether it was created now. Raise OSError."""
    what = re.sub(r"[^\w.-]", "_", what)[:80]
    known = all_folders(run_dir)
    for folder in reversed(known):
        if folder.name.endswith(f"-{what}") and is_fresh(folder):
            return folder, False
    folder = run_dir / "dumps" / f"{number(known[-1]) + 1 if known else 1:03d}-{why}-{what}"
    try:
        folder.mkdir(parents=True)
    except FileExistsError:  # another supervisor has created it at the same time
        return folder, False
    for old in known[: max(0, len(known) + 1 - KEPT)]:
        shutil.rmtree(old, ignore_errors=True)
    return folder, True
