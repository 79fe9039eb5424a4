"""Submits a whole job to Slurm, or parts of one. The manifest records each submission before sbatch runs, so that no job is lost.

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
from typing import TYPE_CHECKING, Any

from torchft_x.errors import ConfigError, TorchftXError
from torchft_x.launch.job.states import ALIVE
from torchft_x.launch.slurm import options, store
from torchft_x.launch.slurm.controller import Controller, Partition, SlurmError
from torchft_x.launch.slurm.rules.manifest import SUBMITTING, Manifest, Part
from torchft_x.launch.slurm.rules.state import part_status
from torchft_x.launch.slurm.script import submission
from torchft_x.timing import POLL_SLOW

if TYPE_CHECKING:  # the job's nodes may lack TorchX
    from torchft_x.launch.slurm.build import Request

_LOOKS = 6  # number of polls for a job whose submission was not confirmed


class SupersededError(ConfigError):
    """Error: another process has submitted the part first."""


# --- a whole job -------------------------------------------------------------------------------------------------------


def launch(request: Request, controller: Controller) -> Manifest:
    """Check, prepare and submit a job, and return its manifest.

    Raise `ConfigError` or `SlurmError` on a failure. Then no part of the job is queued, or the sentence names those that
    could not be cancelled.
    """
    manifest = request.manifest
    _check_run_dir(manifest.run_dir, controller)
    _check_cluster(request, controller)
    _prepare(request)
    try:
        return _submit_roles(request, controller)
    except BaseException as e:
        try:
            cancel(manifest.run_dir, controller)
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
        for role in request.roles:
            store.replace(store.script(manifest.run_dir, role.spec.role), role.text)
        if manifest.groups:
            store.tell_groups(manifest)
    except OSError as e:
        raise ConfigError(f"the run directory {manifest.run_dir} can't be written ({e.strerror}).") from None


def _submit_roles(request: Request, controller: Controller) -> Manifest:
    """Submit the job's roles, and return the manifest with the job ids. Sidecars wait until the first group has begun."""
    manifest = request.manifest
    for role in request.roles:
        after = tuple(part.job for part in manifest.groups[:1]) if role.spec.kind == "sidecar" else ()
        for numbers in role.arrays:
            chosen = [p for p in manifest.parts if p.role == role.spec.role and p.number in numbers]
            manifest = submit_parts(controller, manifest, chosen, after=after, **request.options(role))
    return manifest


def _check_cluster(request: Request, controller: Controller) -> None:
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


def _check_run_dir(run_dir: str, controller: Controller) -> None:
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


def cancel(run_dir: str | Path, controller: Controller) -> Manifest:
    """Ask Slurm to end all parts of the job, and return without waiting. The call may be repeated.

    Raise `SlurmError`, `UnreadableError` or `ConfigError`.
    """
    manifest = store.change(
        run_dir, lambda now: now if now.outcome is not None else dataclasses.replace(now, cancelled=True)
    )
    ids = set(manifest.jobs)
    with contextlib.suppress(SlurmError):  # without the queue, cancel the manifest's ids
        ids |= {row.job for row in controller.rows(app=manifest.app)}  # unconfirmed submissions included
    if ids:
        controller.cancel(ids)
    return manifest


# --- parts -------------------------------------------------------------------------------------------------------------


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
