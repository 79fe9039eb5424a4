"""The lighthouse as a role of a job: its port, its files in the run directory, and the server's flags for them.

In the run directory it makes ``token`` (0600, an existing one is kept), and then the server writes its address to
``lighthouse``. The token is therefore readable as soon as the address is. ``lighthouse.state`` is the journal from which
the next lighthouse in that directory recovers.

If a job has several lighthouses, each writes its address to ``lighthouses/``, in a file named after its ``--index``.
They share that directory's lease, and the journal of the lighthouse that serves.
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

_PORT = 29510  # torchft's default
_TOKEN_WAIT = 10.0  # seconds to wait for another lighthouse to write its token into the file that it has made
_BEGUN = "begun-"  # followed by a hash of the job: a directory, because making one is atomic


def make_token(run_dir: Path) -> Path:
    """Return the path of the run's token file; make it if it is absent.

    Raise `ConfigError` if the directory can't be written.
    """
    path = run_dir / "token"
    try:
        make_run_dir(run_dir)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        deadline = time.monotonic() + _TOKEN_WAIT
        while path.stat().st_size == 0 and time.monotonic() < deadline:  # its reader reports an empty token
            time.sleep(0.02)
        return path
    except OSError as e:
        raise ConfigError(f"The run directory {run_dir} can't be written ({e.strerror}); see --run_dir.") from None
    with os.fdopen(fd, "w", encoding="ascii") as f:
        f.write(env.new_token() + "\n")
    return path


def complete(argv: list[str], run_dir: Path, *, local: bool) -> list[str]:
    """Return the server's flags, completed with the role's. A flag that is given keeps its value."""
    added: list[str] = []
    address_file = run_dir / "lighthouse"
    if "--index" in argv:
        at = argv.index("--index")
        address_file, argv = folder_of_several(run_dir) / argv[at + 1], [*argv[:at], *argv[at + 2 :]]
        claim(run_dir, _job())
        added += ["--lease_dir", str(folder_of_several(run_dir))]
    if "--bind" not in argv:  # a local job shares its host's ports with other jobs
        added += ["--bind", f"[::]:{0 if local else _port()}"]
    if "--token_file" not in argv and env.read(env.TOKEN) is None and env.read(env.TOKEN_FILE) is None:
        added += ["--token_file", str(make_token(run_dir))]
    if "--address_file" not in argv:
        added += ["--address_file", str(address_file)]
    if not {"--state_file", "--lease_dir"} & {*argv, *added}:
        added += ["--state_file", str(run_dir / "lighthouse.state")]
    given = env.read(env.ADVERTISE_HOST) or env.read(env.ADVERTISE_INTERFACE)
    if local and "--advertise_host" not in argv and given is None:
        added += ["--advertise_host", "127.0.0.1"]
    return [*argv, *added]


def claim(run_dir: Path, job: str) -> None:
    """Claim the lighthouses' directory for this job. Raise `ConfigError` if another job has it, or on write errors."""
    mark = folder_of_several(run_dir) / f"{_BEGUN}{hashlib.sha256(job.encode()).hexdigest()[:16]}"
    try:
        folder = make_folder_of_several(run_dir)
        started = [path.name for path in folder.iterdir() if path.name.startswith(_BEGUN)]
        if any(name != mark.name for name in started):
            raise ConfigError(
                f"Another job with several lighthouses has begun in the run directory {run_dir}, and what they wrote there "
                "is not this one's: name another --run_dir."
            )
        mark.mkdir(exist_ok=True)
    except OSError as e:
        raise ConfigError(f"The run directory {run_dir} can't be written ({e.strerror}); see --run_dir.") from None


def _job() -> str:
    """Return a name that tells this job from others with the same run directory. It survives a restart of the process."""
    handle = env.read(env.TORCHX_JOB_ID) or ""
    if handle.startswith("slurm_ft:"):  # each lighthouse is a Slurm job of its own, and only this job has the handle
        return handle
    return f"{handle} {env.read(env.SLURM_JOB_ID) or ''}"


def _port() -> int:
    """Return the port that the other roles expect, or 0 (any port) if that one is taken on this host."""
    at = env.read_lighthouse_at()
    port = _PORT if at is None else at[1]
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
