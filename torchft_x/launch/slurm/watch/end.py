"""``torchft_x slurm-end RUN_DIR JOB``: ends the app. Run by a batch script when the lighthouse beside it has ended."""

from __future__ import annotations

import dataclasses
import sys
import time

from torchft_x.errors import TorchftXError
from torchft_x.launch.job.states import ALIVE
from torchft_x.launch.slurm import store
from torchft_x.launch.slurm.commands import tell_cancelled
from torchft_x.launch.slurm.controller import Controller
from torchft_x.launch.slurm.rules.manifest import Manifest
from torchft_x.launch.slurm.rules.state import part_status
from torchft_x.observe.events import last_event
from torchft_x.rpc.lighthouse.failover.lease_directory import LeaseDirectory

_LEAVE = 90.0  # seconds for groups to end by themselves after the lighthouse has reported that the job is over
_LOOK = 1.0  # seconds between requests for the queue


def main(argv: list[str]) -> int:
    """Run the command and return its exit code. A failure is printed as one sentence; the code is then 1."""
    run_dir, job = argv
    try:
        end(run_dir, job, Controller())
    except (TorchftXError, OSError) as e:
        print(f"torchft_x slurm-end: {e}", file=sys.stderr)
        return 1
    return 0


def end(run_dir: str, me: str, controller: Controller) -> None:
    """Record the lighthouse's verdict in the manifest, if it has one, and cancel jobs that are still queued or do not end.

    Each batch script with a lighthouse calls this with its own job id as `me`. Only the first one acts, because several would
    wait for each other. Raise `SlurmError`, `UnreadableError`, `ConfigError` or `OSError`.
    """
    if store.read(run_dir).cancelled:
        tell_cancelled(run_dir)  # after the end of the lighthouse: one that takes over meanwhile reports its start
        return
    entry = LeaseDirectory(store.lease_folder(run_dir) / "lease").read()
    if entry is None or entry.verdict is None:
        return  # this lighthouse was stopped, and another one serves
    end_event = last_event(run_dir, "lighthouse", "exit") or {}
    verdict, why, first = entry.verdict, str(end_event.get("reason", "")), False

    def decided(now: Manifest) -> Manifest:
        nonlocal first
        first = now.outcome is None and not now.cancelled
        return dataclasses.replace(now, outcome=verdict, why=why) if first else now

    manifest = store.change(run_dir, decided)
    deadline = time.monotonic() + _LEAVE
    while first:
        others = [row for row in controller.rows(app=manifest.app) if row.job != me]
        rest = [row.job for row in others if part_status(row).state in ALIVE]
        queued = [row.job for row in others if part_status(row).state == "PENDING"]
        if queued:
            controller.cancel(queued)
        if not rest:
            break
        if time.monotonic() > deadline:
            controller.cancel(rest)
            break
        time.sleep(_LOOK)
