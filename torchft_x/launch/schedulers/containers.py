"""What requests for containers have in common: the run directory inside them, and the token of those that share none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchft_x import env
from torchft_x.errors import ConfigError

if TYPE_CHECKING:
    from torchft_x.launch.schedulers.role import FtRole

SCRATCH = "/tmp/torchft_x"
"""A pod's own volume, where the job's run directory isn't mounted. Its root may be written by everybody."""
LOCAL_RUN_DIR = f"{SCRATCH}/run"
"""A container's own run directory: the submitter's path means nothing in there."""


def check_shared(role: FtRole, *, shared: bool, where: str) -> None:
    """Raises `ConfigError` where several lighthouses could not work; `where` they would run ("pods")."""
    if role.ft.own_lighthouse and role.ft.lighthouses > 1 and not shared:
        raise ConfigError(
            f"--lighthouses {role.ft.lighthouses} needs a run directory that all {where} share: the lighthouse that serves "
            "holds a lease there, and writes what the next one must know. Mount one (--mounts) and name it with --run_dir."
        )


def set_run_dir(words: list[str], run_dir: str) -> None:
    """In the command of one of our roles. What follows ``--`` is the script's."""
    end = words.index("--") if "--" in words else len(words)
    for i in range(1, end):
        if words[i - 1] == "--run_dir":
            words[i] = run_dir


def find_token(role: FtRole, of_others: str | None, *, shared: bool, where: str) -> str | None:
    """For the environment of a role's containers; None: it is a file in the shared run directory, or there is none.

    `of_others`: what containers of the same request were given before. Raises `ConfigError` where nobody could read the
    lighthouse's own; `where` it would make it ("pod").
    """
    token = of_others or env.read_token()
    if token is None and role.ft.own_lighthouse and not shared:
        return env.new_token()
    if token is None and role.ft.kind == "lighthouse" and not shared and "--token_file" not in role.args:
        raise ConfigError(
            f"This lighthouse would make its token in its own {where}, where nobody can read it: mount --run_dir, give a "
            f"--token_file that is mounted, or set {env.TOKEN} in the shell that submits it."
        )
    return token
