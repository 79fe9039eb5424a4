"""The lighthouse as a role of a job: what must be there before it serves, and what ends it.

In the run directory it makes ``token`` (0600, kept if it is there) and then lets the server write ``lighthouse``, its
address. Whoever reads the address can therefore read the token.
"""

from __future__ import annotations

import os
import secrets
import signal
from pathlib import Path

from torchft_x import env
from torchft_x.errors import ConfigError
from torchft_x.launch import tree


def end_with_the_launcher() -> bool:
    """SIGTERM for us when a local launcher dies. Whether there is one."""
    launcher = env.read_int(env.LAUNCHER_PID)
    if launcher is None and not env.is_local_job():
        return False
    tree.when_parent_dies(launcher, lambda: os.kill(os.getpid(), signal.SIGTERM))
    return True


def make_token(run_dir: Path) -> Path:
    """The run's token file; made if it is absent. Raises `ConfigError` if the directory can't be written."""
    path = run_dir / "token"
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return path
    except OSError as e:
        raise ConfigError(f"The run directory {run_dir} can't be written ({e.strerror}); see --run_dir.") from None
    with os.fdopen(fd, "w", encoding="ascii") as f:
        f.write(secrets.token_urlsafe(32) + "\n")
    return path


def complete(argv: list[str], run_dir: Path, *, local: bool) -> list[str]:
    """The flags of the server with what the role adds; a flag that is given stays as it is."""
    added: list[str] = []
    if "--bind" not in argv:  # a local job shares its host's ports with others
        added += ["--bind", "[::]:0" if local else f"[::]:{env.read_int(env.LIGHTHOUSE_PORT, 29510)}"]
    if "--token_file" not in argv and env.read(env.TOKEN) is None and env.read(env.TOKEN_FILE) is None:
        added += ["--token_file", str(make_token(run_dir))]
    if "--address_file" not in argv:
        added += ["--address_file", str(run_dir / "lighthouse")]
    if local and "--advertise_host" not in argv and env.read(env.ADVERTISE_HOST) is None:
        added += ["--advertise_host", "127.0.0.1"]
    return [*argv, *added]
