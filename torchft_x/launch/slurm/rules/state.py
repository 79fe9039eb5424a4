"""States and ends of a replica from its row in the queue, and states of the job from its groups', with TorchX's names.

A part that Slurm has requeued, or is about to, is PENDING: it is being restarted. FAILED is final.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchft_x.launch.slurm.rules.queue import Row

_PENDING = {
    "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REVOKED",
}  # fmt: skip
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
_OVER = {
    "COMPLETED": "SUCCEEDED", "CANCELLED": "CANCELLED",
    "FAILED": "FAILED", "TIMEOUT": "FAILED", "NODE_FAIL": "FAILED", "OUT_OF_MEMORY": "FAILED", "BOOT_FAIL": "FAILED",
    "DEADLINE": "FAILED", "PREEMPTED": "FAILED", "LAUNCH_FAILED": "FAILED",
}  # fmt: skip
_HOLDS = {"JobHeldUser", "JobHeldAdmin", "launch failed requeued held"}
UNREPORTED = "no word"
"""Result of `ending` for a job that ended like a final exit, of which only the lighthouse knows whether it was reported."""
_WORDS = (1, 2)  # final exit codes of a supervisor: 1 gave up, 2 a mistake that a restart would repeat
_BY_PEOPLE = ("CANCELLED", "REVOKED", "DEADLINE")


@dataclass(frozen=True)
class PartStatus:
    """Status of one replica."""

    state: str
    restarting: bool
    """Whether it ran before and is being restarted."""
    why: str
    """Clause for people with the reason; '' if it just runs."""


def part_status(row: Row | None) -> PartStatus:
    """Return the status of a replica from its row, or of one that Slurm does not know (any more) from None."""
    if row is None:
        return PartStatus("UNKNOWN", False, "Slurm does not know it")
    word = row.word
    if word in _PENDING:
        restarting = row.restarts > 0 or word.startswith(("REQUEUE", "SPECIAL"))
        held = row.reason in _HOLDS or word in ("REQUEUE_HOLD", "SPECIAL_EXIT")
        what = "held; `scontrol release` lets it go on" if held else "restarting" if restarting else "waits"
        return PartStatus("PENDING", restarting, f"{what} ({row.reason})" if row.reason not in ("", "None") else what)
    if word in _RUNNING:
        return PartStatus("RUNNING", False, "" if word in ("RUNNING", "COMPLETING") else word.lower())
    state = _OVER.get(word)
    if state is None:
        return PartStatus("UNKNOWN", False, f"Slurm says {row.state}")
    detail = f"exit code {row.exit_code}" if row.exit_code else ""
    why = ", ".join(filter(None, [word.lower(), row.cause, detail])) if state != "SUCCEEDED" else ""
    return PartStatus(state, False, why)


def app_state(states: Sequence[str], *, min_replicas: int, cancelled: bool = False, outcome: int | None = None) -> str:
    """Return the state of the whole job from its groups' states.

    `outcome` is its lighthouse's verdict, an exit code, or None if there is none.

    A verdict decides the state, but only once no group runs.
    """
    if "RUNNING" in states:
        return "RUNNING"
    if cancelled:
        return "CANCELLED"
    if outcome is not None:
        return "SUCCEEDED" if outcome == 0 else "FAILED"
    return "PENDING" if "PENDING" in states else _by_groups(states, min_replicas)


def _by_groups(states: Sequence[str], min_replicas: int) -> str:
    if states.count("SUCCEEDED") >= max(1, min_replicas):
        return "SUCCEEDED" if "FAILED" not in states else "FAILED"
    for state in ("CANCELLED", "FAILED"):
        if state in states:
            return state
    return "UNKNOWN"


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
