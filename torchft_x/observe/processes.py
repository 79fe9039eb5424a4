"""Which processes of this host belong to a run. Linux: reads /proc."""

from __future__ import annotations

import os
from pathlib import Path

from torchft_x import env


def job_processes(run_dir: str | os.PathLike[str]) -> list[int]:
    """Ids of living processes that have this run directory in their environment or arguments, except our own.

    Supervisors, the lighthouse, torchrun, workers and whatever those started are among them. Processes of other
    users can't be seen, zombies don't count.
    """
    paths = {os.fsencode(run_dir), os.fsencode(Path(run_dir).resolve())}
    variables = {env.RUN_DIR.encode() + b"=" + path for path in paths}
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if variables & _words(entry / "environ") or paths & _words(entry / "cmdline"):
                found.append(int(entry.name))
        except OSError:  # gone in the meantime, or not ours
            continue
    return sorted(found)


def _words(path: Path) -> set[bytes]:
    return set(path.read_bytes().split(b"\0"))
