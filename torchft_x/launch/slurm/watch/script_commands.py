"""Commands of a part's batch script, which run on its first node.

* ``torchft_x slurm-again RUN_DIR ROLE NUMBER JOB SECONDS|unhealthy`` submits the part anew, ahead of its time limit or when
  the health command has failed on one of its nodes.
* ``torchft_x slurm-end RUN_DIR JOB`` ends the app when the lighthouse beside the part has ended.
"""

from __future__ import annotations

import dataclasses
import signal
import time

from torchft_x.errors import TorchftXError
from torchft_x.launch.job.states import ALIVE
from torchft_x.launch.slurm import store
from torchft_x.launch.slurm.commands import END
from torchft_x.launch.slurm.controller import Controller, SlurmError
from torchft_x.launch.slurm.rules.manifest import Manifest
from torchft_x.launch.slurm.rules.state import part_status
from torchft_x.launch.slurm.submit import SupersededError, submit_parts
from torchft_x.launch.slurm.watch.watcher import ask
from torchft_x.observe.events import EventLog, last_event
from torchft_x.rpc.lighthouse.failover.lease_directory import LeaseDirectory
from torchft_x.timing import POLL_SLOW

_SPARE = 5.0  # seconds kept for the submission after the wait


def again(argv: list[str]) -> int:
    """Run ``torchft_x slurm-again`` and return its exit code.

    Ahead of the time limit, stop the part's processes in good order after the submission. A group waits until a lighthouse
    serves, to which it can report that it leaves. A group that left without a report may still have committed a step, and
    its next start would have to wait until it is known to have ended.

    On an unhealthy node, its processes have ended. If Slurm refuses the part, as when no other node is left, report to the
    lighthouse that the group is lost, and return 1.
    """
    run_dir, role, number, job, seconds = argv
    controller = Controller()
    if seconds != "unhealthy":
        if role == "trainer":
            _until_served(store.read(run_dir), float(seconds))
        if _submit(run_dir, role, int(number), job, controller):
            controller.end_step(job)
        return 0
    try:
        _submit(run_dir, role, int(number), job, controller)
    except SlurmError as e:
        if e.uncertain:
            raise  # a watcher submits the part
        why = f"no host is left for it ({e}); {'; '.join(store.unhealthy(run_dir).values())}"
        print(f"{role}/{number}: {why}", flush=True)
        store.tell_groups(store.read(run_dir), {number: why})
        return 1
    return 0


def _submit(run_dir: str, role: str, number: int, job: str, controller: Controller) -> bool:
    """Submit the part anew. Return False if the app is over, or if another job is the part now."""
    manifest = store.read(run_dir)
    part = manifest.part(role, number)
    if manifest.cancelled or manifest.outcome is not None or part is None or part.gone or part.job != job:
        return False
    try:
        submit_parts(controller, manifest, [part])
    except SupersededError:
        return False
    return True


def _until_served(manifest: Manifest, left: float) -> None:
    until = time.monotonic() + left - _SPARE
    while manifest.own_lighthouse and time.monotonic() < until:
        try:
            ask(manifest)
            return
        except TorchftXError:
            time.sleep(POLL_SLOW)


def end(argv: list[str]) -> int:
    """Run ``torchft_x slurm-end`` and return its exit code. Raise the errors of `end_app`."""
    run_dir, job = argv
    end_app(run_dir, job, Controller())
    return 0


def end_app(run_dir: str, me: str, controller: Controller) -> None:
    """Record the lighthouse's verdict in the manifest, if it has one, and cancel jobs that are still queued or do not end.

    Each batch script with a lighthouse calls this with its own job id as `me`. Only the first one acts, because several would
    wait for each other. Raise `SlurmError`, `UnreadableError`, `ConfigError` or `OSError`.
    """
    manifest = store.read(run_dir)
    if manifest.cancelled:
        # After the end of the lighthouse: one that takes over meanwhile reports its start. Its end by a signal is no outcome.
        events = EventLog(run_dir, "lighthouse")
        events.emit("exit", code=128 + signal.SIGTERM, reason="it was cancelled")
        events.close()
        return
    entry = LeaseDirectory(store.lease_folder(run_dir, manifest.app) / "lease").read()
    if entry is None or entry.verdict is None:
        return  # this lighthouse was stopped, and another one serves
    end_event = last_event(run_dir, "lighthouse", "exit") or {}
    verdict, why, first = entry.verdict, str(end_event.get("reason", "")), False

    def decided(now: Manifest) -> Manifest:
        nonlocal first
        first = now.outcome is None and not now.cancelled
        return dataclasses.replace(now, outcome=verdict, why=why) if first else now

    manifest = store.change(run_dir, decided)
    deadline = time.monotonic() + END
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
        time.sleep(POLL_SLOW)
