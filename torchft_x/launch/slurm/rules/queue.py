"""Parser of ``squeue``'s text format, which is the same from 22.05 on, while its JSON differs in every version.

A job's parts are recognised by their comment, ``torchft_x:APP:TICKET:RUN_DIR``. The ticket is unique for each submission,
so that a submission whose answer was lost can be found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

FIELDS = (
    "JobArrayID",
    "ArrayJobID",
    "RestartCnt",
    "State",
    "Exit_Code",
    "NodeList",
    "StartTime",
    "Reason",
    "Name",
    "Comment",
)
"""Fields for ``squeue -O``, in this order; the two with arbitrary text are last."""
_CUT = "|"
MARK = "torchft_x"
_COMMENT = re.compile(rf"{MARK}:([^:\s]+):([^:\s]+):(/\S*)")


@dataclass(frozen=True)
class Row:
    """Job, or one task of an array, in the queue. Fields that Slurm leaves out are empty."""

    job: str
    """Job id for Slurm's commands: ``31_2`` or ``31``."""
    array: str
    """Id of the array, or of a plain job."""
    task: int | None
    """Task of an array; None for a plain job, or another job's tasks that share a line (``31_[4-7]``)."""
    name: str
    state: str
    """Slurm's state: PENDING, RUNNING, COMPLETING, NODE_FAIL, ..."""
    reason: str
    nodes: tuple[str, ...]
    start_time: str
    """Start time in Slurm's format; ``N/A`` if it isn't known."""
    restarts: int
    """Number of times that Slurm has requeued it."""
    comment: str
    exit_code: int = 0
    """Exit code of an ended part; 128 + N if signal N killed it."""

    @property
    def word(self) -> str:
        """State without details: ``CANCELLED`` for ``CANCELLED by 0``."""
        return self.state.split()[0].split("+")[0].upper() if self.state else ""

    @property
    def cause(self) -> str:
        """Reason, or '' if it only states that there is none or that the script has failed."""
        return "" if self.reason in ("None", "NonZeroExitCode") else self.reason

    @property
    def app(self) -> str:
        """Name of the app whose part this is; '' if it is not one of ours."""
        return self._comment[0]

    @property
    def ticket(self) -> str:
        return self._comment[1]

    @property
    def run_dir(self) -> str:
        return self._comment[2]

    @property
    def _comment(self) -> tuple[str, ...]:
        found = _COMMENT.search(self.comment)
        return found.groups() if found else ("", "", "")


def comment(app: str, ticket: str, run_dir: str) -> str:
    return f"{MARK}:{app}:{ticket}:{run_dir}"


def output_format() -> str:
    """Return the format for ``squeue -O``. Fields without a size are not truncated."""
    return ",".join(f"{field}:{_CUT}" for field in FIELDS)


def parse_rows(text: str) -> list[Row]:
    """Return the rows in squeue's output. Skip lines of another shape: another user's job may have any name."""
    return [row for line in text.splitlines() for row in _rows(line)]


def _rows(line: str) -> Iterator[Row]:
    """Yield one row for each task in a line. squeue's own option for that leaves out the last task of ``31_[0-24:8]`` (22.05)."""
    parts = line.split(_CUT, len(FIELDS) - 1)
    if len(parts) < len(FIELDS) or not re.match(r"\d+", parts[0].strip()):
        return
    row = _row(parts[0].strip(), parts)
    several = re.fullmatch(r"(\d+)_\[([-\d:,]+)(%\d+)?\]", row.job)
    if several is None or not row.app:
        yield row
        return
    for task in tasks(several[2]):
        yield replace(row, job=f"{several[1]}_{task}", task=task)


def tasks(text: str) -> list[int]:
    """Return the numbers in Slurm's list of an array's tasks: ``0-2,7,8-24:8``."""
    found: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", piece)
        if match is not None:
            low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            found += range(low, high + 1, max(1, step))
    return found


def _row(job: str, parts: Sequence[str]) -> Row:
    _, array, restarts, state, code, nodes, start, reason, name, said = (part.strip() for part in parts)
    task = re.fullmatch(r"\d+_(\d+)", job)
    return Row(
        job=job,
        array=array or job.partition("_")[0],
        task=int(task[1]) if task else None,
        name=name,
        state=state,
        reason=reason,
        nodes=tuple(expand_nodes(nodes)),
        start_time=start,
        restarts=int(restarts) if restarts.isdecimal() else 0,
        comment=said.removesuffix(_CUT).strip(),
        exit_code=_exit_code(code),
    )


def _exit_code(text: str) -> int:
    """Return the exit code from ``CODE:SIGNAL`` (``scontrol``) or from a wait status (``squeue``)."""
    code, _, signal = text.partition(":")
    if not code.isdecimal():
        return 0
    if signal.isdecimal():
        return 128 + int(signal) if int(signal) else int(code)
    status = int(code)
    return 128 + (status & 0x7F) if status & 0x7F else status >> 8


def expand_nodes(text: str) -> list[str]:
    """Return the names in ``n[01-03,7],m2``; a name may have several brackets. Return none for ``(null)`` and the like."""
    parts = [] if text.startswith("(") else re.split(r",(?![^\[]*\])", text)
    return [name for part in parts if part.strip() for name in _expand(part.strip())]


def _expand(name: str) -> list[str]:
    found = re.search(r"\[([\d,-]+)\]", name)
    if found is None:
        return [name]
    out = []
    for piece in found[1].split(","):
        low, _, high = piece.partition("-")
        for number in range(int(low), int(high or low) + 1):  # padded with zeros to the width of `low`
            out += _expand(f"{name[: found.start()]}{str(number).zfill(len(low))}{name[found.end() :]}")
    return out


def parse_submitted(text: str) -> str:
    """Return the job id from the output of ``sbatch --parsable``, ``ID`` or ``ID;CLUSTER``.

    Raise `ValueError` if the output has no job id.
    """
    for line in reversed(text.strip().splitlines()):
        found = re.fullmatch(r"(\d+)(;\S+)?", line.strip())
        if found:
            return found[1]
    raise ValueError("no job id")
