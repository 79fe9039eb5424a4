"""What the platform is told of a process's end: Kubernetes' termination message, which stays in the pod's status."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from torchft_x import env

_LONGEST = 2048  # characters; Kubernetes keeps 4096 bytes
_FAILED = "failed: "


def tell(code: int, sentence: str, environ: Mapping[str, str] | None = None) -> None:
    """Into the file that TORCHFT_X_LAST_WORDS names, if one is named and can be written."""
    path = env.read(env.LAST_WORDS, None, environ)
    if path is not None:
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as f:
            f.write(f"{_FAILED if code else ''}{sentence}"[:_LONGEST])


def told(environ: Mapping[str, str] | None = None) -> bool:
    """Whether something has been said."""
    path = env.read(env.LAST_WORDS, None, environ)
    try:
        with open(path or "", encoding="utf-8") as f:
            return f.read(1) != ""
    except OSError:
        return False
