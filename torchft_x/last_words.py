"""What the platform is told of a process's end: Kubernetes' termination message, which stays in the pod's status, and
the error file that TorchX's local schedulers show at the end of a job that failed."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping

from torchft_x import env

_LONGEST = 2048  # characters; Kubernetes keeps 4096 bytes
_FAILED = "failed: "


def tell(code: int, sentence: str, environ: Mapping[str, str] | None = None) -> None:
    """Write into the file that TORCHFT_X_LAST_WORDS names, and a failure also into TORCHELASTIC_ERROR_FILE, as far as they are
    named and can be written."""
    path = env.read(env.LAST_WORDS, None, environ)
    if path is not None:
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as f:
            f.write(f"{_FAILED if code else ''}{sentence}"[:_LONGEST])
    path = env.read(env.ERROR_FILE, None, environ)
    if code and path is not None:
        error = {"message": {"message": sentence, "extraInfo": {"timestamp": str(int(time.time()))}}}
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as f:
            json.dump(error, f)


def told(environ: Mapping[str, str] | None = None) -> bool:
    """Whether something has been said."""
    path = env.read(env.LAST_WORDS, None, environ)
    try:
        with open(path or "", encoding="utf-8") as f:
            return f.read(1) != ""
    except OSError:
        return False
