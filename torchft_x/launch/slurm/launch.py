"""Submits a whole job to Slurm: checks it, writes the files in its run directory, submits role by role. Undoes half a job."""

from __future__ import annotations

from torchft_x.errors import ConfigError, TorchftXError
from torchft_x.launch.job.states import ALIVE
from torchft_x.launch.slurm import commands, options, store
from torchft_x.launch.slurm.build import Request
from torchft_x.launch.slurm.controller import Controller, Partition, SlurmError
from torchft_x.launch.slurm.rules.manifest import Manifest
from torchft_x.launch.slurm.rules.state import part_status
from torchft_x.launch.slurm.submit import submit_parts


def launch(request: Request, controller: Controller) -> Manifest:
    """Check, prepare and submit a job, and return its manifest.

    Raise `ConfigError` or `SlurmError` on a failure. Then no part of the job is queued, or the sentence names those that
    could not be cancelled.
    """
    manifest = request.manifest
    check_run_dir(manifest.run_dir, controller)
    check_cluster(request, controller)
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
        for numbers in role.arrays:
            chosen = [p for p in manifest.parts if p.role == role.spec.role and p.number in numbers]
            manifest = submit_parts(controller, manifest, chosen, after=after, **request.options(role))
    return manifest


def check_cluster(request: Request, controller: Controller) -> None:
    """Raise `ConfigError` if the cluster could never run the job, or refuses one of its scripts.

    Raise `SlurmError`, with Slurm's own message, if a command of Slurm's fails.
    """
    found = _partition(request.cfg.get("partition") or "", controller.partitions())
    need = _nodes(request, found)
    if need > found.nodes:
        raise ConfigError(
            f"the job needs {need} nodes at the same time, and the partition {found.name} has {found.nodes}; give fewer groups, "
            "or -cfg array_limit."
        )
    time = str(request.cfg.get("time") or "")
    wanted, most = options.seconds(time), options.seconds(found.limit)
    if wanted is not None and most is not None and wanted > most:
        raise ConfigError(
            f"-cfg time={time}: the partition {found.name} ends jobs after {found.limit}; Slurm would take this one and "
            "never start it. Give a shorter time, with signal=B:USR1@120 to go on after it."
        )
    containers = any("--container-image" in word for role in request.roles for word in role.spec.srun_options)
    if containers and not controller.takes_containers():
        raise ConfigError(
            "--image and -cfg container-image need pyxis, and this cluster's srun has no --container-image; leave them out."
        )
    for role in request.roles:
        try:
            controller.test(request.text(role, role.arrays[0], "test"))
        except SlurmError as e:
            if e.uncertain:
                raise
            raise ConfigError(f"Slurm would not take the role {role.spec.role}: {e}") from None


def check_run_dir(run_dir: str, controller: Controller) -> None:
    """Raise `ConfigError` if a job that has not ended uses the run directory."""
    if not store.is_slurm_run(run_dir):
        return
    other: Manifest = store.read(run_dir)
    alive = [row for row in controller.rows(app=other.app) if part_status(row).state in ALIVE]
    if alive:
        raise ConfigError(
            f"the job {other.app} goes on in the run directory {run_dir} ({alive[0].job} is {alive[0].state}); name another "
            "--run_dir."
        )


def _partition(name: str, partitions: dict[str, Partition]) -> Partition:
    names = name.split(",") if name else [p.name for p in partitions.values() if p.default]
    if not names:
        raise ConfigError(f"the cluster has no default partition; give -cfg partition= one of {', '.join(partitions)}.")
    for one in names:
        if one not in partitions:
            raise ConfigError(f"-cfg partition={one}: there is none; the cluster has {', '.join(sorted(partitions))}.")
        if not partitions[one].up:
            raise ConfigError(f"-cfg partition={one}: it is closed (`sinfo -p {one}`).")
    return max((partitions[one] for one in names), key=lambda p: p.nodes)


def _nodes(request: Request, partition: Partition) -> int:
    """Return the number of nodes needed at the same time. Exclusive groups share none; other parts may share the largest one's."""
    alone, shared = 0, 0
    for role in request.roles:
        if role.spec.kind == "trainer" and request.cfg.get("exclusive"):
            alone += min(role.parts, request.options(role)["limit"] or role.parts) * role.spec.nodes
        else:
            shared = max(shared, role.spec.nodes)
    return alone + shared
