"""Checks of the script and the file system before anything starts. Each raises `ConfigError` with one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchft_x import env, tls
from torchft_x.errors import ConfigError

if TYPE_CHECKING:
    from torchft_x.launch.job.job import FtJob, FtLighthouse

DEFAULT_SCRIPTS = ("scripts/train_ddp.py", "scripts/train_hsdp.py", "scripts/train_diloco.py")
"""Default scripts of the components. They exist only in a clone of the repository."""


MOST_GROUPS = 4096
"""Largest number of groups of a running job."""


def check_groups(wanted: int, *, least: int, command: Sequence[str] | None, lighthouse: bool = True) -> None:
    """Check that a running job can have so many groups.

    `command` is a group's, None if the job has no groups. `lighthouse` is whether the job has one of its own.
    """
    if command is None:
        raise ConfigError("this job has no replica groups.")
    if not lighthouse:
        raise ConfigError("the lighthouse of this job is not its own, so nobody can tell it how many groups there are.")
    if not max(1, least) <= wanted <= MOST_GROUPS:
        raise ConfigError(
            f"--replicas is {wanted}; it must lie between {max(1, least)} (the job's --min_replicas) and {MOST_GROUPS}."
        )
    if "--workers" in command[:-1] and "," in command[command.index("--workers") + 1]:
        raise ConfigError(
            "the groups of this job differ in size (--islands), so it can't be told how large a new one is."
        )


def check_script(script: str, whose: str = "") -> None:
    """Check that the file exists, relative to the current directory, and is valid Python. `whose` names its owner."""
    if Path(script).is_dir():
        raise ConfigError(f"The script {whose}{script} is a directory; name the Python file in it.")
    if Path(script).exists() and not Path(script).is_file():
        raise ConfigError(f"The script {whose}{script} can be read only once (a pipe or device); save it as a file.")
    if not Path(script).is_file():
        default = not whose and script in DEFAULT_SCRIPTS
        what = f"The default script {script}, which comes with a clone of torchft_x," if default else ""
        what = what or f"The script {whose}{script}"
        todo = "correct its command" if whose else "name yours with --script"
        raise ConfigError(f"{what} does not exist in {os.getcwd()}; {todo}.")
    try:
        compile(Path(script).read_bytes(), script, "exec", dont_inherit=True)
    except SyntaxError as e:
        raise ConfigError(
            f"The script {script} can't run: {e.msg} (line {e.lineno}: {(e.text or '').strip()})."
        ) from None
    except (OSError, ValueError) as e:
        raise ConfigError(f"The script {script} can't be read: {e}.") from None


def check_arguments(script: str, arguments: Sequence[str]) -> None:
    """Check that a default script gets only flags: another first word means that --script was forgotten."""
    if script not in DEFAULT_SCRIPTS or not arguments or arguments[0].startswith("-"):
        return
    first = arguments[0]
    todo = f"write --script {first}" if first.endswith(".py") else "name your script with --script"
    raise ConfigError(
        f"{first!r} would be an argument of the default script {script}, which takes none like it, and so would "
        f"everything after it; {todo}, then options of the component, then -- and the script's arguments."
    )


def check_run_dir(path: str) -> None:
    """Check that the path is a writable directory, or can be created as one."""
    there = Path(path)
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        what = "is a file" if there == Path(path) else f"can't be made: {there} is a file"
        raise ConfigError(f"--run_dir {path} {what}; name a directory.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"--run_dir {path} can't be written by this user ({there}); name another directory.")


def check_secrets(job: FtJob | FtLighthouse) -> None:
    """Check that the token's file exists and is not empty, and that TLS can be used, if they are wanted."""
    path = job.token_file
    token = env.read_token_file(path, f"--token_file {path}") if path else None
    if job.tls not in ("", "off"):
        tls.check(job.tls, token or env.read_token())


def check_mounts(mounts: Iterable[Any]) -> None:
    """Check that the sources of bind mounts exist on this machine. The container engine checks volumes and devices."""
    for mount in mounts:
        source = getattr(mount, "src_path", None)
        if source and not hasattr(mount, "permissions") and not os.path.exists(source):
            raise ConfigError(f"--mounts: {source} does not exist on this machine, so it can't be bound into the job.")
