"""The ledger of one of several lighthouses: it says, too, whether its lighthouse has ever issued anything.

Only a lighthouse that never has may begin a job (`core.restart.standby`). A file that isn't there, or is empty, says nothing: it
may have been written on a host that is lost. So one is blank only if somebody has said that the job is new, and nothing was
written since. The mark for that stands where the first write comes, which needs no room on the disk. It is of a boot:
nothing is flushed, so after a power failure it may stand there although something was issued.
"""

from __future__ import annotations

import os

from torchft_x.errors import ConfigError
from torchft_x.rpc.lighthouse.journal import Journal, blank_header, take_ledger


def open_shared(path: str, *, boot_id: str, run: bytes, new_job: bool, again: bool) -> Journal:
    """`new_job`: the command says so. `again`: the same command was started again, by its keeper, on the same host.

    Raises `ConfigError` if the file can't be used, or speaks against a new job.
    """
    try:
        if new_job and not again:
            if os.path.exists(path) and not _is_blank(path, boot_id):
                raise ConfigError(
                    f"--new_job, but {path} holds what a lighthouse has written, or is of another boot of this host: its job "
                    "has begun. Leave --new_job out to go on with it. To begin another one, end all processes of that job, and name another --state_file for "
                    "each of its lighthouses."
                )
            if not os.path.exists(path):
                _make_blank(path, boot_id)
        return take_ledger(path, boot_id=boot_id, run=run)
    except OSError as e:
        raise ConfigError(f"--state_file {path} can't be used ({e.strerror or e}); name another.") from None


def _is_blank(path: str, boot_id: str) -> bool:
    with open(path, "rb") as f:
        return f.read() == blank_header(boot_id)


def _make_blank(path: str, boot_id: str) -> None:
    """At once with its content."""
    new = f"{path}.{os.getpid()}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, blank_header(boot_id))
    finally:
        os.close(fd)
    os.rename(new, path)
