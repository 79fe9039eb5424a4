"""Status of jobs: from Slurm's queue, the watchers' note, and the manifest for parts that Slurm has forgotten.

It works from any shell and directory of the user, and without the run directory: the app's id is in the comment of each of
its jobs. A run is found by the user's index of jobs (``~/.local/state/torchft_x/slurm``), else by that comment.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchft_x.launch.job.index import Index, index_folder
from torchft_x.launch.job.states import ALIVE, FAILED, OVER, PENDING, RUNNING, UnreadableError
from torchft_x.launch.slurm import store
from torchft_x.launch.slurm.controller import Controller, SlurmError
from torchft_x.launch.slurm.rules.manifest import SUBMITTING, Manifest, Part, rows_by_part
from torchft_x.launch.slurm.rules.queue import Row
from torchft_x.launch.slurm.rules.state import PartStatus, app_state, part_status
from torchft_x.launch.slurm.rules.values import read_memory
from torchft_x.timing import POLL_SLOW


@dataclass(frozen=True)
class JobStatus:
    """Status of one job at one moment."""

    app: str
    state: str
    """Name of the job's TorchX state."""
    manifest: Manifest | None
    """Manifest; None if it can't be read on this machine."""
    rows: dict[str, Row | None]
    """Rows in the queue, by the part's name (``trainer/0``), or by the job's id if there is no manifest."""
    trouble: str = ""
    """Sentence that explains why the status is incomplete; '' if it is complete."""
    unheard: Mapping[str, PartStatus] = field(default_factory=dict)
    """Groups that Slurm runs and whose supervisors do not report, by the part's name."""

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def alive(self) -> list[str]:
        """Ids of the Slurm jobs that are queued or run. An app that is over may have some."""
        return [row.job for row in self.rows.values() if row is not None and part_status(row).state in ALIVE]

    @property
    def restarts(self) -> int:
        """Number of restarts of all parts, requeued by Slurm or submitted anew."""
        queued = sum(row.restarts for row in self.rows.values() if row is not None)
        return queued + sum(len(part.earlier) for part in (self.manifest.parts if self.manifest else ()))

    def part_status(self, part: Part) -> PartStatus:
        row = self.rows.get(part.name)
        if row is None and part.job == SUBMITTING:
            return PartStatus("PENDING", False, "is being submitted")
        if row is None and part.gone:
            return PartStatus("CANCELLED", False, "the job has fewer groups now")
        if row is None and self.over:  # Slurm has forgotten it
            return PartStatus(self.state, False, "as the job has ended")
        return self.unheard.get(part.name) or part_status(row)


class StatusReader:
    """Source of the jobs' status. It asks Slurm for all jobs at once, and at most once a second."""

    def __init__(self, controller: Controller, index: Index | None = None) -> None:
        self._controller = controller
        self.index = Index(index_folder().with_name("slurm")) if index is None else index
        self._asked = -POLL_SLOW  # monotonic seconds
        self._rows: list[Row] = []
        self._trouble = ""  # reason why Slurm's last answer is missing

    def poll(self, app: str) -> JobStatus | None:
        """Return the job's status, or None if there is no such job. If Slurm fails, `JobStatus.trouble` gives the reason."""
        rows = [row for row in self._queue() if row.app == app]
        run_dir = self.index.find(app) or (Path(rows[0].run_dir) if rows else None)
        manifest, missing = _manifest(run_dir, app)
        if manifest is None and not rows:
            if run_dir is None and not self._trouble:
                return None
            return JobStatus(app, "UNKNOWN", None, {}, self._trouble or missing)
        if manifest is None:
            state = app_state([part_status(row).state for row in rows], min_replicas=1)
            return JobStatus(app, state, None, {row.job: row for row in rows}, missing)
        found = rows_by_part(manifest, rows)
        now = JobStatus(app, "UNKNOWN", manifest, found, self._trouble, _unheard(manifest, found))
        if self._trouble and manifest.outcome is None:
            return now
        groups = [part for part in manifest.groups or manifest.parts if not part.gone]
        state = app_state(
            [now.part_status(part).state for part in groups],
            min_replicas=manifest.min_replicas,
            cancelled=manifest.cancelled,
            outcome=manifest.outcome,
        )
        return dataclasses.replace(now, state=state)

    def apps(self) -> list[JobStatus]:
        """Return the status of all known jobs of the user, the newest first."""
        known = dict(self.index.all())
        names = [*known, *sorted({row.app for row in self._queue()} - set(known), reverse=True)]
        found = []
        for name in names:
            now = self.poll(name)
            if now is None or (now.manifest is None and not now.rows and not self._trouble):
                self.index.forget(name)  # its run directory was removed, and Slurm has forgotten it
            else:
                found.append(now)
        return found

    def forget(self) -> None:
        """Discard the last answer, so that the next call asks Slurm. Call it after any change to a job."""
        self._asked = -POLL_SLOW

    def _queue(self) -> list[Row]:
        now = time.monotonic()
        if now - self._asked >= POLL_SLOW:
            try:
                self._rows, self._trouble = self._controller.rows(), ""
            except SlurmError as e:
                self._rows, self._trouble = [], str(e)
            self._asked = time.monotonic()
        return self._rows


def _unheard(manifest: Manifest, rows: Mapping[str, Row | None]) -> dict[str, PartStatus]:
    """Return the status of each group of a running job that Slurm runs and whose supervisors do not report to its lighthouse."""
    if not manifest.own_lighthouse or manifest.cancelled or manifest.outcome is not None:
        return {}
    memories, lost = store.watcher_note(manifest.run_dir).get("parts"), store.lost_groups(manifest.run_dir)
    found = {}
    for part in manifest.groups:
        row = rows[part.name]
        if row is None or part_status(row).state != RUNNING:
            continue
        if str(part.number) in lost:
            found[part.name] = PartStatus(FAILED, False, f"it is given up: {lost[str(part.number)]}")
        elif why := why_unheard(memories.get(part.name) if isinstance(memories, dict) else None, part, row):
            found[part.name] = PartStatus(PENDING, row.restarts > 0, why)
    return found


def why_unheard(found: Any, part: Part, row: Row) -> str:
    """Return why a part that Slurm runs is not known to run, as a clause; '' if all its supervisors report.

    `found` is the part's memory from `to_json`.
    """
    memory = read_memory(found, 0.0)
    came = memory.came if memory is not None and memory.start == (row.job, row.restarts) else set()
    missing = [node for node in range(part.nodes) if node not in came]
    if missing:
        where = ", ".join(row.nodes[node] for node in missing if node < len(row.nodes)) or "?"
        return f"Slurm has run it on {where} since {row.start_time}, and nobody has heard of its supervisor yet"
    if memory is not None and memory.silent_since is not None:
        return f"its supervisor has been silent since {time.strftime('%H:%M:%S', time.localtime(memory.silent_since))}"
    return ""


def _manifest(run_dir: Path | None, app: str) -> tuple[Manifest | None, str]:
    """Return the app's manifest, or None with the reason as a sentence ('' if no run directory is known)."""
    if run_dir is None:
        return None, ""
    try:
        found = store.read(run_dir)
    except UnreadableError as e:
        return None, str(e)
    if found.app != app:
        return None, f"The run directory {run_dir} is the job {found.app}'s by now."
    return found, ""


def batch_log(manifest: Manifest, part: Part) -> Path:
    """Return the path of the batch script's output for the part's present job."""
    return Path(manifest.log_dir, f"{part.role}-{part.number}.{part.job}.slurm.log")


def logs(manifest: Manifest, part: Part, node: int) -> list[Path]:
    """Return the log files of one node of a part, of all its attempts, in the order of their starts."""
    order = {job: index for index, job in enumerate(part.jobs)}
    stem = f"{part.role}-{part.number}-{node}."
    found = []
    for path in Path(manifest.log_dir).glob(f"{stem}*-r*.log"):
        job, _, attempt = path.name.removeprefix(stem).removesuffix(".log").rpartition("-r")
        if attempt.isdecimal():
            found.append((order.get(job, len(order)), job, int(attempt), path))
    return [path for *_, path in sorted(found)]


def replica(manifest: Manifest, role: str, number: int) -> tuple[Part, int] | None:
    """Return the part, and the node in it, of TorchX's replica `number` of a role. A lighthouse belongs to its group's part."""
    group = manifest.group(str(number)) if role == "lighthouse" and manifest.own_lighthouse else None
    if group is not None:
        return dataclasses.replace(group, role=role), 0
    nodes = next((part.nodes for part in manifest.parts if part.role == role), 1)
    part = manifest.part(role, number // nodes)
    return None if part is None else (part, number % nodes)
