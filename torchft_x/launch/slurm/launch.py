"""Submits a whole job to Slurm: writes the files in its run directory, then submits role by role. Undoes half a job."""

from __future__ import annotations

from torchft_x.errors import ConfigError, TorchftXError
from torchft_x.launch.slurm import checks, commands, store
from torchft_x.launch.slurm.build import Request, arrays
from torchft_x.launch.slurm.controller import Controller, SlurmError
from torchft_x.launch.slurm.rules.manifest import Manifest
from torchft_x.launch.slurm.submit import submit_parts


def launch(request: Request, controller: Controller) -> Manifest:
    """Check, prepare and submit a job, and return its manifest.

    Raise `ConfigError` or `SlurmError` on a failure. Then no part of the job is queued, or the sentence names those that
    could not be cancelled.
    """
    manifest = request.manifest
    checks.check_run_dir(manifest.run_dir, controller)
    checks.check_cluster(request, controller)
    _prepare(request)
    try:
        return _submit(request, controller)
    except BaseException as e:
        try:
            commands.cancel(manifest.run_dir, controller)
        except TorchftXError as rest:
            if isinstance(e, TorchftXError):
                raise SlurmError(
                    f"{e} What was submitted before could not be cancelled ({rest}); see `squeue --me`, and end jobs named "
                    f"{manifest.app}-* by `scancel`."
                ) from None
        raise


def _prepare(request: Request) -> None:
    manifest = request.manifest
    store.create(manifest)
    try:
        store.lease_folder(manifest.run_dir).mkdir(exist_ok=True)
        for role in request.roles:
            store.replace(store.script(manifest.run_dir, role.spec.role), role.text)
        if manifest.groups:
            store.tell_groups(manifest)
    except OSError as e:
        raise ConfigError(f"the run directory {manifest.run_dir} can't be written ({e.strerror}).") from None


def _submit(request: Request, controller: Controller) -> Manifest:
    """Submit the job's roles, and return the manifest with the job ids. Sidecars wait until the first group has begun."""
    manifest = request.manifest
    for role in request.roles:
        after = tuple(part.job for part in manifest.groups[:1]) if role.spec.kind == "sidecar" else ()
        for numbers in arrays(role):
            chosen = [p for p in manifest.parts if p.role == role.spec.role and p.number in numbers]
            manifest = submit_parts(controller, manifest, chosen, after=after, **request.options(role))
    return manifest
