"""Reports of a process's end: for Kubernetes' pod status, and in the error file that TorchX's local schedulers show."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping

from torchft_x import env
from torchft_x.atomic_file import replace_file

_LONGEST = 2048  # characters; Kubernetes keeps 4096 bytes
_FAILED = "failed: "


def write(code: int, sentence: str, path: str | None, environ: Mapping[str, str] | None = None) -> None:
    """Write the sentence where the platform reads it. Skip files that are not named or can't be written.

    `path` names the file, TORCHELASTIC_ERROR_FILE another one for failures (`code` is not 0).
    """
    if path is not None:
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as f:
            f.write(f"{_FAILED if code else ''}{sentence}"[:_LONGEST])
    path = env.read(env.ERROR_FILE, None, environ)
    if code and path is not None:
        error = {"message": {"message": sentence, "extraInfo": {"timestamp": str(int(time.time()))}}}
        with contextlib.suppress(OSError):
            replace_file(path, json.dumps(error))  # TorchX reads it at any time


def was_written(path: str | None) -> bool:
    """Return whether a sentence was written into the file."""
    try:
        with open(path or "", encoding="utf-8") as f:
            return f.read(1) != ""
    except OSError:
        return False
