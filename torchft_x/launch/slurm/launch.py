"""Submits a whole job to Slurm: writes the files in its run directory, then submits role by role. Undoes half a job."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

from torchft_x.errors import ConfigError, TorchftXError
from torchft_x.launch.slurm import checks, store
from torchft_x.launch.slurm.build import Request, arrays
from torchft_x.launch.slurm.controller import Controller, SlurmError
from torchft_x.launch.slurm.rules.manifest import Manifest, Part
from torchft_x.launch.slurm.submit import submit_parts, take_back


def launch(request: Request, controller: Controller) -> Manifest:
    """Check, prepare and submit a job, and return its manifest.

    Raise `ConfigError` or `SlurmError` on a failure. Then no part of the job is queued, or the sentence names those that
    could not be cancelled.
    """
    checks.check_run_dir(request.run_dir, controller)
    checks.check_cluster(request, controller)
    manifest = _prepare(request)
    try:
        return _submit(request, controller, manifest)
    except BaseException as e:
        rest = _take_back(request, controller)
        if rest and isinstance(e, TorchftXError):
            raise SlurmError(f"{e} {rest}") from None
        raise


def _prepare(request: Request) -> Manifest:
    folder = store.folder(request.run_dir)
    parts = []
    for role in request.roles:
        path = folder / f"{role.how.role}.sh"
        parts += [
            Part(role=role.how.role, kind=role.how.kind, number=n, script=str(path), nodes=role.how.nodes)
            for n in range(role.parts)
        ]
    manifest = Manifest(
        app=request.app_id,
        session=request.session,
        run_dir=request.run_dir,
        token_file=request.token_file,
        log_dir=str(folder / "logs"),
        created=time.time(),
        retries=request.retries,
        start_deadline=request.start_deadline,
        min_replicas=request.min_replicas,
        own_lighthouse=request.own_lighthouse,
        parts=tuple(parts),
    )
    store.create(manifest)
    try:
        store.lease_folder(request.run_dir).mkdir(exist_ok=True)
        for role in request.roles:
            _write_private(folder / f"{role.how.role}.sh", role.text)
        if manifest.groups:
            store.tell_groups(manifest)
    except OSError as e:
        raise ConfigError(f"the run directory {request.run_dir} can't be written ({e.strerror}).") from None
    return manifest


def _submit(request: Request, controller: Controller, manifest: Manifest) -> Manifest:
    """Submit the job's roles, and return the manifest with the job ids. Sidecars wait until the first group has begun."""
    for role in request.roles:
        after = tuple(part.job for part in manifest.groups[:1]) if role.how.kind == "sidecar" else ()
        for numbers in arrays(role):
            chosen = [p for p in manifest.parts if p.role == role.how.role and p.number in numbers]
            manifest = submit_parts(
                controller,
                manifest,
                chosen,
                limit=request.limit if role.how.kind == "trainer" else 0,
                after=after,
                said=request.said,
            )
    return manifest


def _take_back(request: Request, controller: Controller) -> str:
    """Cancel the submitted parts. Return '' on success, or a sentence about parts that are left."""
    try:
        store.change(request.run_dir, _cancelled)
        take_back(controller, store.read(request.run_dir))
    except TorchftXError as e:
        return (
            f"What was submitted before could not be cancelled ({e}); see `squeue --me`, and end jobs named {request.app_id}-* by "
            "`scancel`."
        )
    return ""


def _cancelled(manifest: Manifest) -> Manifest:
    return dataclasses.replace(manifest, cancelled=True)


def _write_private(path: Path, text: str) -> None:
    """Write a file atomically with mode 0600, because it holds --env."""
    other = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(other, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(other, path)
