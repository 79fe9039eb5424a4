"""Manifest of an app: the Slurm job of each part, as needed to show the app, end it, or submit a part anew.

It is kept in ``RUN_DIR/slurm/manifest.json`` (launch/slurm/store.py). It holds no secret.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchft_x import json_values
from torchft_x.launch.slurm.rules.queue import Row

FORMAT = 1
SUBMITTING = "?"
"""Placeholder for a job's id while it is being submitted, or after the submission was interrupted."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Unit that starts, ends and is requeued on its own: a replica group, an extra role's replica or a lone lighthouse."""

    role: str
    kind: str
    """lighthouse, trainer or sidecar; '' for a program that isn't ours."""
    number: int
    """Its task in an array, even if alone in it: a trainer's group, or the replica of another role."""
    script: str
    """Absolute path of its role's batch script, which does not contain the array's range."""
    nodes: int = 1
    job: str = ""
    """Job id such as ``31_2``, '' if not submitted, or `SUBMITTING`."""
    ticket: str = ""
    """Ticket of its last submission."""
    earlier: tuple[str, ...] = ()
    """Ids of its earlier jobs, the oldest first."""
    gone: bool = False
    """Whether it must not run any more: the job was scaled down, or the group is given up."""

    @property
    def name(self) -> str:
        return f"{self.role}/{self.number}"

    @property
    def array(self) -> str:
        """Id of its array."""
        return self.job.partition("_")[0]

    @property
    def jobs(self) -> tuple[str, ...]:
        return (*self.earlier, *([self.job] if self.job not in ("", SUBMITTING) else []))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Manifest of an app: its parts, run directory, restart budget and outcome."""

    app: str
    run_dir: str
    token_file: str
    """File with the run's token, in the run directory unless one was given."""
    retries: int
    """Number of times that a group may be submitted anew within an hour."""
    start_deadline: float = 600.0
    """Seconds within which a group's supervisor must report after Slurm shows the group as running."""
    min_replicas: int = 1
    own_lighthouse: bool = True
    """Whether the app has a lighthouse of its own, beside the groups."""
    parts: tuple[Part, ...] = ()
    cancelled: bool = False
    """Whether the app was ended by our command."""
    outcome: int | None = None
    """Exit code of the lighthouse; None if the app is not over, or the code is not known."""
    why: str = ""
    """Sentence with the lighthouse's reason for the outcome."""

    @property
    def log_dir(self) -> str:
        """Folder for logs: the parts' ROLE-NUMBER-TASK.JOB-rRESTARTS.log, the batch scripts' ROLE-NUMBER.JOB.slurm.log."""
        return f"{self.run_dir}/slurm/logs"

    @property
    def groups(self) -> tuple[Part, ...]:
        """Parts that are replica groups, those that are gone included."""
        return tuple(part for part in self.parts if part.kind == "trainer")

    @property
    def jobs(self) -> tuple[str, ...]:
        """Present job ids of all submitted parts."""
        return tuple(part.job for part in self.parts if part.job not in ("", SUBMITTING))

    def part(self, role: str, number: int) -> Part | None:
        return next((p for p in self.parts if (p.role, p.number) == (role, number)), None)

    def group(self, group: str) -> Part | None:
        return next((part for part in self.groups if str(part.number) == group), None)

    def with_part(self, part: Part) -> Manifest:
        """Return the manifest with this part added, or instead of the one with its name."""
        if self.part(part.role, part.number) is None:
            return dataclasses.replace(self, parts=(*self.parts, part))
        parts = tuple(part if p.name == part.name else p for p in self.parts)
        return dataclasses.replace(self, parts=parts)


def rows_by_part(manifest: Manifest, rows: Sequence[Row]) -> dict[str, Row | None]:
    """Return each part's row in the queue, by the part's name. A part that is being submitted is found by its ticket.

    After tasks were cancelled while they waited, the queue may have only one row for their array, without a task.
    """
    by_job = {row.job: row for row in rows}
    by_ticket = {(row.ticket, row.task): row for row in rows if row.app == manifest.app}
    found: dict[str, Row | None] = {}
    for part in manifest.parts:
        rest = by_ticket.get((part.ticket, None))
        if rest is not None:
            rest = dataclasses.replace(rest, job=f"{rest.array}_{part.number}", task=part.number)
        found[part.name] = by_job.get(part.job) or by_ticket.get((part.ticket, part.number)) or rest
    return found


def to_json(manifest: Manifest) -> dict[str, Any]:
    return {"format": FORMAT, **dataclasses.asdict(manifest)}


def from_json(found: Any) -> Manifest:
    """Return the manifest from `to_json`'s value. Ignore fields of another version; raise `ValueError` for any other value."""
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError("another format")
    return json_values.from_json(Manifest, found)
