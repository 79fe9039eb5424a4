"""The files of a run directory that hold addresses, for everybody who sends the run's token to such an address.

A user who can change one of these files, or put another one in its place, receives the token. So a file counts only if
it and its folders belong to this user or root, and nobody else may write them. The folders above the run directory and
access control lists are not looked at.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from torchft_x.errors import ConfigError
from torchft_x.net import Address, parse_address

PAGE = "page"
"""Name of the file with the address of the lighthouse's page."""
_LIGHTHOUSE = "lighthouse"
_SEVERAL = "lighthouses"
_MODE = 0o755  # mode of the folders at most, under any umask
_MOST = 4096  # bytes that are read of a file


def make_run_dir(run_dir: str | os.PathLike[str]) -> None:
    """Make the run directory, so that only this user can write it. Raises OSError."""
    Path(run_dir).mkdir(parents=True, exist_ok=True, mode=_MODE)


def folder_of_several(run_dir: Path) -> Path:
    """Return where the addresses of a job's lighthouses are, by place, and what they share."""
    return run_dir / _SEVERAL


def make_folder_of_several(run_dir: Path) -> Path:
    """Make that folder. Raises OSError."""
    make_run_dir(run_dir)
    folder_of_several(run_dir).mkdir(exist_ok=True, mode=_MODE)
    return folder_of_several(run_dir)


def lighthouse_files(run_dir: Path) -> list[Path]:
    """Return the address files of a run's lighthouses, by place; there need not be one yet. Raises OSError."""
    folder = folder_of_several(run_dir)
    names = sorted((f.name for f in folder.iterdir() if f.name.isdigit()), key=int) if folder.is_dir() else []
    return [folder / name for name in names] or [run_dir / _LIGHTHOUSE]


def read_address(file: Path) -> Address | None:
    """Return the address in a file of a run directory; None if there is none yet.

    Raises `ConfigError` if somebody else may have written it, `AddressError` if it holds something else, and OSError.
    """
    try:
        with open(file, "rb", opener=_without_waiting) as f:
            several = file.parent.name == _SEVERAL
            for folder in (file.parent.parent, file.parent) if several else (file.parent,):
                _check(os.stat(folder), folder)
            _check(os.fstat(f.fileno()), file)
            text = f.read(_MOST).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    return parse_address(text, what=str(file)) if text else None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)  # a named pipe would be waited for


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
    """Return whether the group is the owner's alone, named after them, as where the usual umask is 002.

    That it has no other members is not enough: members by their primary group are not listed.
    """
    if not found.st_mode & stat.S_IWGRP:
        return False
    try:
        owner, group = pwd.getpwuid(found.st_uid).pw_name, grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    return group.gr_name == owner and set(group.gr_mem) <= {owner}
