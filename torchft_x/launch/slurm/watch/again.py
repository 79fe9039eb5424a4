"""``torchft_x slurm-again RUN_DIR ROLE NUMBER JOB SECONDS|elsewhere``: a part's script submits it anew.

It does so before its time limit, or when the health command has failed on one of its nodes.
"""

from __future__ import annotations

import time

from torchft_x.errors import TorchftXError
from torchft_x.launch.slurm import store
from torchft_x.launch.slurm.controller import Controller, SlurmError
from torchft_x.launch.slurm.rules.manifest import Manifest
from torchft_x.launch.slurm.submit import SupersededError, submit_parts
from torchft_x.launch.slurm.watch.watcher import ask

_SPARE = 5.0  # seconds kept for the submission after the wait
_LOOK = 1.0  # seconds between requests to the lighthouse


def main(argv: list[str]) -> int:
    """Run the command and return its exit code."""
    run_dir, role, number, job, seconds = argv
    if seconds == "elsewhere":
        return elsewhere(run_dir, role, int(number), job, Controller())
    return again(run_dir, role, int(number), job, float(seconds), Controller())


def again(run_dir: str, role: str, number: int, job: str, left: float, controller: Controller) -> int:
    """Submit this job's part anew, `left` seconds ahead of its time limit, and stop its processes in good order.

    A group waits until a lighthouse serves, to which it can report that it leaves. A group that left without a report may
    still have committed a step, and its next start would have to wait until it is known to have ended.
    """
    if role == "trainer":
        _until_served(store.read(run_dir), left)
    if _submit(run_dir, role, number, job, controller):
        controller.end_step(job)
    return 0


def elsewhere(run_dir: str, role: str, number: int, job: str, controller: Controller) -> int:
    """Submit this job's part anew, without unhealthy nodes. Its processes have ended.

    If Slurm refuses it, as when no other node is left, report to the lighthouse that the group is lost, and return 1.
    """
    try:
        _submit(run_dir, role, number, job, controller)
    except SlurmError as e:
        if e.uncertain:
            raise  # a watcher submits the part
        hosts = store.unhealthy(run_dir)
        why = f"no host is left for it ({e}); {'; '.join(hosts.values())}"
        print(f"{role}/{number}: {why}", flush=True)
        store.tell_groups(store.read(run_dir), {**store.lost_groups(run_dir), str(number): why})
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
            time.sleep(_LOOK)
