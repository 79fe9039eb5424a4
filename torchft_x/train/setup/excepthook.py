"""Ends a script that is refused by the other groups or the lighthouse, or that can't write its result."""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType

from torchft_x.errors import RefusedError, UnsavedError

EXIT_CODE = 2  # final for the supervisor: the same script would be refused again
UNSAVED = os.EX_CANTCREAT  # final as well: a restart would train everything again and lose it again

_lock = threading.Lock()
_installed = False


def end_with_a_sentence() -> None:
    """Install an excepthook by which an uncaught `RefusedError` ends the process with its sentence alone and code 2.

    An uncaught `UnsavedError` ends it in the same way with code 73.
    """
    global _installed
    with _lock:
        if _installed:
            return
        _installed = True
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, (RefusedError, UnsavedError)):
            before(kind, error, trace)
            return
        print(f"torchft_x: {error}", file=sys.stderr, flush=True)
        # The interpreter exits with this code after the atexit functions.
        raise SystemExit(UNSAVED if isinstance(error, UnsavedError) else EXIT_CODE)

    sys.excepthook = hook
