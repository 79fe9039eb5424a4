"""Classifies the end of a part's Slurm job: final exit code, cancelled by a person, or lost."""

from __future__ import annotations

from torchft_x.launch.slurm.rules.queue import Row

UNREPORTED = "no word"
"""Result of `ending` for a job that ended like a final exit, of which only the lighthouse knows whether it was reported."""
_WORDS = (1, 2)  # final exit codes of a supervisor: 1 gave up, 2 a mistake that a restart would repeat
_BY_PEOPLE = ("CANCELLED", "REVOKED", "DEADLINE")


def ending(row: Row, kind: str) -> tuple[str, str]:
    """Return ``lost``, ``anew``, `UNREPORTED` or '' (nothing to do) for an ended job's row, and the reason as a clause.

    `kind` is that of the `Part`. An exit code above 128 is not final: by it the batch script reports that the supervisor was
    killed.
    """
    word = row.word
    if word in _BY_PEOPLE:
        return (
            "lost",
            f"its job {row.job} was cancelled by Slurm's means" if word != "DEADLINE" else "its deadline passed",
        )
    if word == "COMPLETED":
        return (
            (UNREPORTED, f"its job {row.job} has ended without a word to the lighthouse")
            if kind == "trainer"
            else ("", "")
        )
    if word == "FAILED" and row.cause.partition(":")[0] in ("", "RaisedSignal") and row.exit_code in _WORDS:
        if kind != "trainer":
            return "", ""
        if row.exit_code == 2:
            return "lost", f"its job {row.job} ended with code 2, a mistake that another start would repeat"
        return UNREPORTED, f"its job {row.job} ended with code 1 and no word to the lighthouse"
    if word == "FAILED" and kind not in ("trainer", "lighthouse") and row.exit_code <= 128:
        return "", ""
    code = f", exit code {row.exit_code}" if row.exit_code else ""
    reason = f", {row.cause}" if row.cause else ""
    return "anew", f"its job {row.job} ended as {word or 'unknown'}{reason}{code}"
