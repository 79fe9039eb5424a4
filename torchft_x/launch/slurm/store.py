"""Files of a job in its run directory: ``slurm/manifest.json``, replaced as a whole under a lock, and ``slurm/groups.json``.

Several processes change the manifest: the launcher, the watchers, ``torchft_x scale`` and ``torchx cancel``. `change`
therefore applies a function to the present manifest, never writes one that was read earlier.

``groups.json`` is for the lighthouse: it lists the job's groups, and those that have ended for good. The lighthouse does not
take an absent group for lost, because a group may be requeued: only a group named as ended there is lost. The watcher writes
the file when it gives up a group, ``torchft_x scale`` when it changes the number of groups.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from torchft_x.address_files import LIGHTHOUSES, make_run_dir
from torchft_x.atomic_file import replace_file
from torchft_x.core.job.kept_groups import parse, render
from torchft_x.core.messages.job import GroupsChanged, SupervisorFinished
from torchft_x.errors import ConfigError
from torchft_x.launch.job.health import UNHEALTHY
from torchft_x.launch.job.states import read_state
from torchft_x.launch.slurm.rules.manifest import Manifest, from_json, to_json
from torchft_x.timing import PATIENCE, POLL

WATCHER = "watcher.json"
"""Name of the file with the watchers' note, in `folder`."""


def folder(run_dir: str | Path) -> Path:
    """Return our folder in the run directory."""
    return Path(run_dir, "slurm")


def path_of(run_dir: str | Path) -> Path:
    return folder(run_dir) / "manifest.json"


def groups_file(run_dir: str | Path) -> Path:
    """Return the path of the lighthouse's list of the job's groups."""
    return folder(run_dir) / "groups.json"


def watcher_note(run_dir: str | Path) -> dict[str, Any]:
    """Return the watchers' note, with their memory of each part by its name (``parts``), or {} if it can't be read."""
    try:
        found = json.loads((folder(run_dir) / WATCHER).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def script(run_dir: str | Path, role: str) -> Path:
    """Return the path of a role's batch script."""
    return folder(run_dir) / f"{role}.sh"


def lease_folder(run_dir: str | Path, app: str) -> Path:
    """Return the folder of the lease and the journal of a job's lighthouses.

    Each job has its own, because the lease of one that has ended holds its verdict."""
    return Path(run_dir, LIGHTHOUSES, app)


def is_slurm_run(run_dir: str | Path) -> bool:
    """Return whether the run directory is that of a job of slurm_ft."""
    return path_of(run_dir).is_file()


def read(run_dir: str | Path) -> Manifest:
    """Return the run's manifest. Raise `UnreadableError` if there is none, or it can't be read."""
    return read_state(path_of(run_dir), from_json, "no job of slurm_ft has that run directory")


def create(manifest: Manifest) -> None:
    """Write a new job's manifest, and create its folders, without the state of an earlier job in the run directory.

    Raise `ConfigError` if the run directory can't be written."""
    ours = folder(manifest.run_dir)
    try:
        make_run_dir(manifest.run_dir)
        ours.mkdir(parents=True, exist_ok=True, mode=0o700)
        Path(manifest.log_dir).mkdir(parents=True, exist_ok=True)
        with _locked(manifest.run_dir):
            for path in (groups_file(manifest.run_dir), ours / WATCHER, *(ours / UNHEALTHY).glob("*")):
                path.unlink(missing_ok=True)
            replace(path_of(manifest.run_dir), json.dumps(to_json(manifest), indent=1))
    except OSError as e:
        raise ConfigError(f"the run directory {manifest.run_dir} can't be written ({e.strerror}).") from None


def change(run_dir: str | Path, how: Callable[[Manifest], Manifest]) -> Manifest:
    """Apply `how` to the manifest under the lock, write the result and return it.

    Raise `UnreadableError` if the manifest can't be read, `ConfigError` if it can't be written or locked.
    """
    try:
        with _locked(run_dir):
            before = read(run_dir)
            after = how(before)
            if after != before:
                replace(path_of(run_dir), json.dumps(to_json(after), indent=1))
            return after
    except OSError as e:
        raise ConfigError(f"{path_of(run_dir)} can't be written ({e.strerror}).") from None


def tell_groups(manifest: Manifest, lost: Mapping[str, str] = {}, back: Collection[str] = ()) -> None:
    """Write ``groups.json`` for the lighthouse. Raise `OSError` or `ConfigError`.

    `lost` has groups gone for good, with reasons (clauses), in addition to those in the file. The groups in `back` run again.
    """
    wanted = tuple(str(part.number) for part in manifest.groups if not part.gone)
    with _locked(manifest.run_dir):
        known = {**lost, **lost_groups(manifest.run_dir)}  # the first reason stays
        ended = tuple(
            SupervisorFinished(group, 1, why)
            for group, why in known.items()
            if group in wanted and (group in lost or group not in back)
        )
        replace(groups_file(manifest.run_dir), render(GroupsChanged(wanted, ended)))


def lost_groups(run_dir: str | Path) -> dict[str, str]:
    """Return the lost groups that were reported to the lighthouse, each with the reason; none if there is no such report."""
    try:
        return {end.group: end.sentence for end in parse(groups_file(run_dir).read_text("utf-8")).ended}
    except (OSError, UnicodeDecodeError, ConfigError):
        return {}


def unhealthy(run_dir: str | Path) -> dict[str, str]:
    """Return the nodes that the job must not use, each with the first reason (a clause)."""
    found = {}
    for path in sorted((folder(run_dir) / UNHEALTHY).glob("*")):
        with contextlib.suppress(OSError):
            found[path.name] = path.read_text("utf-8", "replace").partition("\n")[0].partition(" ")[2]
    return found


@contextlib.contextmanager
def _locked(run_dir: str | Path) -> Iterator[None]:
    fd = os.open(folder(run_dir) / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"another process has held {folder(run_dir) / 'lock'} for {PATIENCE:g} s; look for it, or try again."
                    ) from None
                time.sleep(POLL)
        yield
    finally:
        os.close(fd)


def replace(path: Path, text: str) -> None:
    """Replace a file of the job. Raise `OSError`."""
    # 0600: batch scripts hold --env. Synced: a job whose id is lost would never be cancelled.
    replace_file(path, text, mode=0o600, sync=True)
