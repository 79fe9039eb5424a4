"""Which of Slurm's jobs are which parts of an app: what anybody needs who looks at it, ends it, or submits a part anew.

Kept in ``RUN_DIR/slurm/manifest.json`` (launch/slurm/store.py). It holds no secret.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchft_x.core.slurm.queue import Row

FORMAT = 1
SUBMITTING = "?"
"""In the place of a job's id: it is being submitted, or whoever did so was interrupted."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A replica group, an extra role's replica or a lighthouse that stands alone: what starts, ends and is requeued for itself."""

    role: str
    kind: str
    """lighthouse, trainer or sidecar; empty: a program that isn't ours."""
    number: int
    """Its task in an array, alone in it or not: of a trainer the group, of others the replica."""
    script: str
    """Of its role, with which it is submitted (absolute path); the array's range is not in there."""
    nodes: int = 1
    job: str = ""
    """``31_2``; empty: not submitted; `SUBMITTING`."""
    ticket: str = ""
    """Of its last submission."""
    earlier: tuple[str, ...] = ()
    """Jobs that it was before, the oldest first."""
    gone: bool = False
    """It is not to run any more: the job was told to have fewer groups, or the group is given up."""

    @property
    def name(self) -> str:
        return f"{self.role}/{self.number}"

    @property
    def array(self) -> str:
        """The id of the array in which it is."""
        return self.job.partition("_")[0]

    @property
    def jobs(self) -> tuple[str, ...]:
        return (*self.earlier, *([self.job] if self.job not in ("", SUBMITTING) else []))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    app: str
    session: str
    run_dir: str
    token_file: str
    """Where the run's token is read; in the run directory unless one was given."""
    log_dir: str
    """Of the parts: ROLE-NUMBER-TASK.JOB-rRESTARTS.log, and ROLE-NUMBER.JOB.slurm.log of the batch scripts."""
    created: float
    """Unix seconds."""
    retries: int
    """How often a group may be submitted anew within an hour."""
    start_deadline: float = 600.0
    """Seconds in which a group's supervisor must report, once Slurm says that it runs."""
    min_replicas: int = 1
    own_lighthouse: bool = True
    """It runs beside the groups."""
    parts: tuple[Part, ...] = ()
    cancelled: bool = False
    """Somebody has ended it by our command."""
    outcome: int | None = None
    """What the lighthouse ended with; None: not over, or not known."""
    why: str = ""
    """Its sentence."""

    @property
    def groups(self) -> tuple[Part, ...]:
        """Also those that are gone."""
        return tuple(part for part in self.parts if part.kind == "trainer")

    @property
    def jobs(self) -> tuple[str, ...]:
        """Of all parts that were submitted, as they are now."""
        return tuple(part.job for part in self.parts if part.job not in ("", SUBMITTING))

    def part(self, role: str, number: int) -> Part | None:
        return next((p for p in self.parts if (p.role, p.number) == (role, number)), None)

    def group(self, group: str) -> Part | None:
        return next((part for part in self.groups if str(part.number) == group), None)

    def with_part(self, part: Part) -> Manifest:
        """In the place of the one of that name, or added."""
        if self.part(part.role, part.number) is None:
            return dataclasses.replace(self, parts=(*self.parts, part))
        parts = tuple(part if p.name == part.name else p for p in self.parts)
        return dataclasses.replace(self, parts=parts)


def rows_by_part(manifest: Manifest, rows: Sequence[Row]) -> dict[str, Row | None]:
    """The queue's row of each part, by its name. A part that is being submitted is found by its ticket.

    Of tasks that were cancelled while they waited, all that is left may be one row of their array, without a task.
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


def missing_parts(manifest: Manifest, rows: Sequence[Row]) -> Iterator[Part]:
    """Parts that were submitted and that Slurm does not know any more."""
    found = rows_by_part(manifest, rows)
    return (part for part in manifest.parts if part.job not in ("", SUBMITTING) and found[part.name] is None)


def to_json(manifest: Manifest) -> dict[str, Any]:
    return {"format": FORMAT, **dataclasses.asdict(manifest)}


def from_json(found: Any) -> Manifest:
    """Fields of a newer version are left out. Raises ValueError for what `to_json` hasn't made."""
    if not isinstance(found, Mapping) or found.get("format") != FORMAT:
        raise ValueError("another format")
    parts = found.get("parts")
    if not isinstance(parts, list):
        raise ValueError("no parts")
    made: Manifest = _made(Manifest, found, parts=tuple(_made(Part, _earlier(p)) for p in parts))
    return made


def _earlier(part: Any) -> dict[str, Any]:
    if not isinstance(part, Mapping) or not isinstance(part.get("earlier", []), list):
        raise ValueError("a part")
    return {**part, "earlier": tuple(map(str, part.get("earlier", [])))}


_TYPES: dict[str, Any] = {
    "str": str, "int": int, "float": (int, float), "bool": bool, "int | None": (int, type(None)),
    "tuple[str, ...]": tuple,
}  # fmt: skip


def _made(kind: Any, found: Mapping[str, Any], **made: Any) -> Any:
    values = dict(made)
    for field in dataclasses.fields(kind):
        if field.name in made or field.name not in found:
            continue
        value = found[field.name]
        if not isinstance(value, _TYPES[str(field.type)]) or (isinstance(value, bool) and str(field.type) != "bool"):
            raise ValueError(field.name)
        values[field.name] = value
    try:
        return kind(**values)
    except TypeError as e:
        raise ValueError(str(e)) from None
