"""Submits parts of a job to Slurm. The manifest records each submission before sbatch runs, so that no job is lost.

Each submission has a ticket, which is in the job's comment. If sbatch fails or hangs after the controller has accepted the
job, the job is found by its ticket.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from torchft_x.errors import ConfigError
from torchft_x.launch.slurm import store
from torchft_x.launch.slurm.controller import Controller, SlurmError
from torchft_x.launch.slurm.rules.manifest import SUBMITTING, Manifest, Part
from torchft_x.launch.slurm.script import submission
from torchft_x.timing import POLL_SLOW

_LOOKS = 6  # number of polls for a job whose submission was not confirmed


class SupersededError(ConfigError):
    """Error: another process has submitted the part first."""


def submit_parts(controller: Controller, manifest: Manifest, parts: Sequence[Part], **options: Any) -> Manifest:
    """Submit parts of one role in one array, and return the changed manifest. `options` are those of `script.submission`.

    The caller must know that their last jobs are over. The ids of those move to `Part.earlier`. Nodes on which the health
    command failed are excluded.

    Raise `SlurmError` or `ConfigError`, with the parts restored in the manifest. Raise `SupersededError` if another process
    has submitted one of them since `manifest` was read.
    """
    (role,) = {part.role for part in parts}
    ticket = secrets.token_hex(8)
    options["exclude"] = list(dict.fromkeys([*options.get("exclude", ()), *store.unhealthy(manifest.run_dir)]))
    script = read_script(parts[0].script)
    text = submission(
        script,
        app=manifest.app,
        role=role,
        ticket=ticket,
        run_dir=manifest.run_dir,
        numbers=[part.number for part in parts],
        groups=sum(not part.gone for part in manifest.groups),
        **options,
    )
    store.change(manifest.run_dir, lambda now: _begun(now, parts, ticket))
    try:
        job = _submit(controller, manifest.app, text, ticket)
    except BaseException:
        store.change(manifest.run_dir, lambda now: _restored(now, parts, ticket))
        raise
    after_all = store.change(
        manifest.run_dir, lambda now: _each(now, parts, lambda p: dataclasses.replace(p, job=f"{job}_{p.number}"))
    )
    if after_all.cancelled:  # during the submission
        controller.cancel([job])
    return after_all


def _submit(controller: Controller, app: str, text: str, ticket: str) -> str:
    """Submit a script and return the job's id. If the answer was lost, search for the job by its ticket."""
    try:
        return controller.submit(text)
    except SlurmError as e:
        for look in range(_LOOKS if e.uncertain else 0):
            if look:
                time.sleep(POLL_SLOW)
            with contextlib.suppress(SlurmError):
                for row in controller.rows(app=app):
                    if row.ticket == ticket:
                        return row.array
        raise


def read_script(path: str) -> str:
    """Return the text of a batch script. Raise `ConfigError` if it can't be read."""
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"the batch script {path} can't be read ({getattr(e, 'strerror', None) or e}).") from None


def _begun(now: Manifest, parts: Sequence[Part], ticket: str) -> Manifest:
    if now.cancelled:
        raise ConfigError(f"the job {now.app} was cancelled.")
    for part in parts:
        there = now.part(part.role, part.number)
        if there is not None and (there.job, there.ticket) != (part.job, part.ticket):
            raise SupersededError(f"{part.name} was submitted by somebody else: it is the job {there.job} now.")
    return _each(
        now, parts, lambda p: dataclasses.replace(p, job=SUBMITTING, ticket=ticket, earlier=p.jobs, gone=False)
    )


def _each(now: Manifest, parts: Sequence[Part], how: Callable[[Part], Part]) -> Manifest:
    for part in parts:
        there = now.part(part.role, part.number) or part
        now = now.with_part(how(there))
    return now


def _restored(now: Manifest, before: Iterable[Part], ticket: str) -> Manifest:
    for part in before:
        there = now.part(part.role, part.number)
        if there is not None and there.ticket == ticket:
            now = now.with_part(part)
    return now
