"""``torchft_x cancel`` and ``torchft_x scale`` for a job of slurm_ft."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Collection
from pathlib import Path

from torchft_x.errors import ConfigError
from torchft_x.launch.job.checks import check_groups
from torchft_x.launch.job.states import ALIVE
from torchft_x.launch.slurm import store
from torchft_x.launch.slurm.controller import Controller, SlurmError
from torchft_x.launch.slurm.rules.manifest import SUBMITTING, Manifest
from torchft_x.launch.slurm.rules.queue import Row
from torchft_x.launch.slurm.rules.state import part_status
from torchft_x.launch.slurm.submit import cancel, read_script, submit_parts
from torchft_x.timing import POLL_SLOW

END = 120.0  # seconds for a job's parts to end, which may save first; KillWait is 30 by default


def end(run_dir: str) -> str:
    """End the job, wait for its end, and return a sentence about it. Raise as `cancel`."""
    controller = Controller()
    manifest = cancel(run_dir, controller)
    deadline = time.monotonic() + END
    while rest := [row.job for row in controller.rows(app=manifest.app) if part_status(row).state in ALIVE]:
        if time.monotonic() > deadline:
            raise SlurmError(f"the job {manifest.app} did not end within {END:g} s: {', '.join(rest)} go on.")
        time.sleep(POLL_SLOW)
    return f"The job {manifest.app} has ended."


def resize(run_dir: str | Path, wanted: int, controller: Controller | None = None) -> tuple[str, int]:
    """Change the number of the job's groups. Report new and removed groups to the lighthouse first.

    Return the app id and the former number. Raise `ConfigError`, `SlurmError` or `UnreadableError`.
    """
    controller = controller or Controller()
    manifest = store.read(run_dir)
    _check(manifest, controller.rows(app=manifest.app), wanted)
    there = sorted((part for part in manifest.groups if not part.gone), key=lambda part: part.number)
    if wanted > len(there):
        _grow(controller, manifest, wanted)
    else:
        going = there[wanted:]
        names = {part.name for part in going}
        store.tell_groups(store.change(run_dir, lambda now: _gone(now, names)))
        controller.cancel([part.job for part in going if part.job not in ("", SUBMITTING)])
    return manifest.app, len(there)


def _check(manifest: Manifest, rows: list[Row], wanted: int) -> None:
    if manifest.outcome is not None or manifest.cancelled:
        raise ConfigError(f"the job {manifest.app} has ended.")
    command = read_script(manifest.groups[0].script).split() if manifest.groups else None
    check_groups(wanted, least=manifest.min_replicas, command=command, lighthouse=manifest.own_lighthouse)
    by_job = {row.job: row for row in rows}
    if not any(part_status(by_job.get(part.job)).state in ALIVE for part in manifest.groups):
        raise ConfigError(f"no group of the job {manifest.app} runs, or waits to.")
    if any(part_status(by_job.get(part.job)).state == "SUCCEEDED" for part in manifest.groups if not part.gone):
        raise ConfigError("the job is about to end: a group has finished.")


def _grow(controller: Controller, manifest: Manifest, wanted: int) -> None:
    pattern = manifest.groups[0]
    numbers = [n for n in range(wanted) if (found := manifest.group(str(n))) is None or found.gone]
    fresh = dataclasses.replace(pattern, job="", ticket="", earlier=())
    new = [  # an earlier `scale` may have removed the group
        dataclasses.replace(manifest.group(str(n)) or fresh, number=n, gone=False) for n in numbers
    ]
    manifest = store.change(manifest.run_dir, lambda now: functools.reduce(Manifest.with_part, new, now))
    store.tell_groups(manifest)
    try:
        submit_parts(controller, manifest, new)
    except BaseException:
        names = {part.name for part in new}
        undone = store.change(manifest.run_dir, lambda now: _gone(now, names))
        store.tell_groups(undone)
        raise


def _gone(manifest: Manifest, names: Collection[str]) -> Manifest:
    parts = tuple(dataclasses.replace(p, gone=True) if p.name in names else p for p in manifest.parts)
    return dataclasses.replace(manifest, parts=parts)
