"""What becomes of a script that the other groups, or the lighthouse, refuse."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

from torchft_x.errors import RefusedError

EXIT_CODE = 2  # final for the supervisor: the same script would be refused again (docs/decisions/0006-usage-errors.md)

_lock = threading.Lock()
_installed = False


def end_with_a_sentence() -> None:
    """From now on a `RefusedError` that nobody catches ends the process with its sentence alone and code 2."""
    global _installed
    with _lock:
        if _installed:
            return
        _installed = True
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, RefusedError):
            before(kind, error, trace)
            return
        print(f"torchft_x: {error}", file=sys.stderr, flush=True)
        raise SystemExit(EXIT_CODE)  # the interpreter takes its exit code from here, after running what is at exit

    sys.excepthook = hook
