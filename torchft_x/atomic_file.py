"""Replacement of a whole file, so that a reader sees the old content or the new one at any time."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def replace_file(path: str | os.PathLike[str], content: str | bytes, *, mode: int = 0o644, sync: bool = False) -> None:
    """Replace a file atomically; `sync` makes it survive a crash of the host. Raise OSError."""
    partial = Path(path).with_name(f".{Path(path).name}.{secrets.token_hex(4)}")
    try:
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as f:
            f.write(content.encode() if isinstance(content, str) else content)
            f.flush()
            if sync:
                os.fsync(fd)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
