"""The lighthouse as a role of a job: where it serves, what must be there before, and what ends it.

In the run directory it makes ``token`` (0600, kept if it is there) and then lets the server write ``lighthouse``, its
address. Whoever reads the address can therefore read the token. ``lighthouse.state`` is what the next one there must know.

Where a job brings several, each has its address in ``lighthouses/``, under its place, and what they share is there: the lease,
and the journal of the one that serves.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import time
from pathlib import Path

from torchft_x import env, log_lines, net
from torchft_x.address_files import folder_of_several, make_folder_of_several, make_run_dir
from torchft_x.errors import ConfigError

_PORT = 29510  # the peer's
_TOKEN_WAIT = 10.0  # seconds for another lighthouse's token to be in the file that it has made
_BEGUN = "begun-"  # and the job: a directory, which appears for everybody at once


def make_token(run_dir: Path) -> Path:
    """The run's token file; made if it is absent. Raises `ConfigError` if the directory can't be written."""
    path = run_dir / "token"
    try:
        make_run_dir(run_dir)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        deadline = time.monotonic() + _TOKEN_WAIT
        while path.stat().st_size == 0 and time.monotonic() < deadline:  # else whoever reads it says so
            time.sleep(0.02)
        return path
    except OSError as e:
        raise ConfigError(f"The run directory {run_dir} can't be written ({e.strerror}); see --run_dir.") from None
    with os.fdopen(fd, "w", encoding="ascii") as f:
        f.write(env.new_token() + "\n")
    return path


def complete(argv: list[str], run_dir: Path, *, local: bool) -> list[str]:
    """The flags of the server with what the role adds; a flag that is given stays as it is."""
    added: list[str] = []
    address_file = run_dir / "lighthouse"
    if (
        env.read_int(env.LIGHTHOUSES, 1) or 1
    ) > 1 and "--place" in argv:  # else a script's own, which inherits the variable
        at = argv.index("--place")
        address_file, argv = folder_of_several(run_dir) / argv[at + 1], [*argv[:at], *argv[at + 2 :]]
        claim(run_dir, _job())
        added += ["--lease_dir", str(folder_of_several(run_dir))]
    if "--bind" not in argv:  # a local job shares its host's ports with everybody
        added += ["--bind", f"[::]:{0 if local else _port()}"]
    if "--token_file" not in argv and env.read(env.TOKEN) is None and env.read(env.TOKEN_FILE) is None:
        added += ["--token_file", str(make_token(run_dir))]
    if "--address_file" not in argv:
        added += ["--address_file", str(address_file)]
    if not {"--state_file", "--lease_dir"} & {*argv, *added} and env.read(env.STATE_FILE) is None:
        added += ["--state_file", str(run_dir / "lighthouse.state")]
    given = env.read(env.ADVERTISE_HOST) or env.read(env.ADVERTISE_INTERFACE)
    if local and "--advertise_host" not in argv and given is None:
        added += ["--advertise_host", "127.0.0.1"]
    return [*argv, *added]


def claim(run_dir: Path, job: str) -> None:
    """Make the lighthouses' directory this job's. Raises `ConfigError` if it is another's, or can't be written."""
    mark = folder_of_several(run_dir) / f"{_BEGUN}{hashlib.sha256(job.encode()).hexdigest()[:16]}"
    try:
        folder = make_folder_of_several(run_dir)
        begun = [path.name for path in folder.iterdir() if path.name.startswith(_BEGUN)]
        if any(name != mark.name for name in begun):
            raise ConfigError(
                f"Another job with several lighthouses has begun in the run directory {run_dir}, and what they wrote there "
                "is not this one's: name another --run_dir."
            )
        mark.mkdir(exist_ok=True)
    except OSError as e:
        raise ConfigError(f"The run directory {run_dir} can't be written ({e.strerror}); see --run_dir.") from None


def _job() -> str:
    """Tells this job from others that were given the same run directory; the same when a process is started again."""
    handle = env.read(env.TORCHX_JOB_ID) or ""
    if handle.startswith("slurm_ft:"):  # each lighthouse is a job of its own there, and the handle nobody else's
        return handle
    return f"{handle} {env.read(env.SLURM_JOB_ID) or ''}"


def _port() -> int:
    """The one the other roles expect; 0 (any) if it is taken on this host."""
    port = env.read_int(env.LIGHTHOUSE_PORT, _PORT) or 0
    if port == 0 or _is_free(port):
        return port
    log_lines.write(
        f"torchft_x lighthouse: port {port} is taken on this host; another one is used, which only the address file in "
        "the run directory tells. Roles that don't share that directory will not find it: choose another --run_dir "
        "(the port follows from it).",
        sys.stderr,
    )
    return 0


def _is_free(port: int) -> bool:
    host = net.any_host()
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have just ended don't matter
        try:
            s.bind((host, port))
            s.listen(1)
        except OSError:
            return False
    return True
