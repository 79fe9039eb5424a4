"""Address files of a run directory, for all programs that send the run's token to such an address.

A user who can change or replace one of these files receives the token. A file is therefore accepted only if it and the
run directory belong to this user or root, and no other user may write them. The folders above it and access control
lists are not checked.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from torchft_x import env
from torchft_x.errors import ConfigError
from torchft_x.net import Address, parse_address

LIGHTHOUSE, PAGE = "lighthouse", "page"
"""Names of the files with the address of the lighthouse that serves, and with that of its page."""
LIGHTHOUSES = "lighthouses"
"""Name of the folder of several lighthouses, with a folder for each job, which holds their lease and journal."""
_MODE = 0o755  # most permissive mode of the folders, under any umask
_MOST = 4096  # bytes of a file that are read


def make_run_dir(run_dir: str | os.PathLike[str]) -> None:
    """Create the run directory, writable for this user only. Raise OSError."""
    Path(run_dir).mkdir(parents=True, exist_ok=True, mode=_MODE)


def read_address(file: Path) -> Address | None:
    """Return the address in a file of a run directory, or None if there is none yet. An https:// address turns TLS on.

    Raise `ConfigError` if another user may have written it, `AddressError` if its content is no address, or OSError.
    """
    try:
        with open(file, "rb", opener=env.without_waiting) as f:
            _check(os.stat(file.parent), file.parent)
            _check(os.fstat(f.fileno()), file)
            text = f.read(_MOST).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    env.enable_tls_if_https(text)
    return parse_address(text, what=str(file)) if text else None


def _check(found: os.stat_result, path: Path) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"{path} belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}: whoever made it could "
            "lead the run's token to a lighthouse of their own. Use a run directory of your own."
        )
    others = stat.S_IWOTH if _is_private_group(found) else stat.S_IWOTH | stat.S_IWGRP
    if found.st_mode & others:
        raise ConfigError(
            f"{path} may be written by other users (mode {stat.S_IMODE(found.st_mode):04o}), who could lead the run's token "
            f"to a lighthouse of their own: chmod go-w {path}, or use another run directory."
        )


def _is_private_group(found: os.stat_result) -> bool:
    """Return whether the group is the owner's private one, with the owner's name, as on systems with umask 002.

    A group without other listed members is not enough, because members by their primary group are not listed.
    """
    if not found.st_mode & stat.S_IWGRP:
        return False
    try:
        owner, group = pwd.getpwuid(found.st_uid).pw_name, grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    return group.gr_name == owner and set(group.gr_mem) <= {owner}
