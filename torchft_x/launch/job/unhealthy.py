"""Nodes that a job must not use, because the health command failed there: a file for each, in a folder that nodes share.

Supervisors write it, and slurm_ft excludes these nodes from all later submissions. Lines are the name of a part's start and
the reason.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

UNHEALTHY = "unhealthy"
"""Name of the folder, beside the parts' fence files."""
UNHEALTHY_HOST = 75
"""Exit code of a supervisor whose group is to be started on another node (EX_TEMPFAIL)."""


def report_unhealthy(folder: Path, node: str, start: str, sentence: str) -> None:
    """Record that the job must not use a node, as the start of a part with this name has found. Raise `OSError`."""
    (folder / UNHEALTHY).mkdir(exist_ok=True)
    with (folder / UNHEALTHY / node).open("a", encoding="utf-8") as f:
        f.write(f"{start} {sentence}\n")


def unhealthy_nodes(folder: Path) -> dict[str, str]:
    """Return the nodes that the job must not use, each with the first reason (a clause)."""
    found = {}
    for path in sorted((folder / UNHEALTHY).glob("*")):
        with contextlib.suppress(OSError):
            found[path.name] = path.read_text("utf-8", "replace").partition("\n")[0].partition(" ")[2]
    return found
