"""Which processes of this host belong to a run. Linux: reads /proc."""

from __future__ import annotations

import os
from pathlib import Path

from torchft_x import env


def job_processes(run_dir: str | os.PathLike[str]) -> list[int]:
    """Ids of living processes that were started with this run directory in their environment, except our own.

    Supervisors, the lighthouse, torchrun, workers and whatever those started are among them. Processes of other
    users can't be seen, zombies don't count.
    """
    wanted = f"{env.RUN_DIR}={Path(run_dir).resolve()}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # gone in the meantime, or not ours
            continue
    return sorted(found)
