"""Common part of requests for containers: the run directory inside them, and the token if they share no directory."""

from __future__ import annotations

from torchft_x import env
from torchft_x.errors import ConfigError
from torchft_x.launch.schedulers.role import FtRole

SCRATCH = "/tmp/torchft_x"
"""Mount point of a pod's own volume if the job's run directory isn't mounted. Its root is writable for all users."""
LOCAL_RUN_DIR = f"{SCRATCH}/run"
"""Path of a container's own run directory, if the submitter's path does not exist in the container."""
REPLACED_WITHIN = 600  # seconds, at most, to schedule a lighthouse's pod (again), pull its image and start it


def check_shared(role: FtRole, *, shared: bool, where: str) -> None:
    """Raise `ConfigError` for several lighthouses without a shared run directory. `where`: such as "pods"."""
    if role.ft.own_lighthouse and role.ft.lighthouses > 1 and not shared:
        raise ConfigError(
            f"--lighthouses {role.ft.lighthouses} needs a run directory that all {where} share: the lighthouse that serves "
            "holds a lease there, and writes what the next one must know. Mount one (--mounts) and name it with --run_dir."
        )


def find_token(role: FtRole, of_others: str | None, *, shared: bool, where: str) -> str | None:
    """Return the token for the environment of a role's containers, or None if it is in a file, or the run has none.

    `of_others` is the token that other containers of the request already have. Raise `ConfigError` if the lighthouse would
    create its token where nobody else can read it (`where`, "pod").
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
