"""Ends a script with the sentence of an error of torchft_x and the exit code that the supervisor understands.

Without `exit_code`, only errors that the script can't have caused itself get their sentence: a refusal by the other
groups or the lighthouse, a result that can't be written, and wrong results of this group's hardware.

Code 1 lets the supervisor restart the script. Nobody restarts a command, so its errors have `TorchftXError.exit_code`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType

from torchft_x.errors import ConfigError, FaultyError, RefusedError, TorchftXError, UnsavedError

EXIT_CODE = 2  # final for the supervisor: the same script would be refused again
UNSAVED = os.EX_CANTCREAT  # final as well: a restart would train everything again and lose it again
FAULTY = os.EX_OSERR  # final as well: a restart would compute on the same hardware

_lock = threading.Lock()
_installed = False


def exit_code(main: Callable[[], object]) -> int:
    """Run `main()`, print an error of torchft_x as one sentence without a traceback, and return the exit code.

    The code is 0 without an error, 2 for a `ConfigError` or a `RefusedError`, which a restart would only repeat, 73
    for an `UnsavedError` and 71 for a `FaultyError`, after which the supervisor doesn't train again, and 1 for other
    errors of torchft_x. Errors of any other kind are raised.

    ::

        if __name__ == "__main__":
            sys.exit(exit_code(main))
    """
    try:
        main()
    except TorchftXError as e:
        print(f"{os.path.basename(sys.argv[0])}: {e}", file=sys.stderr, flush=True)
        return _code_of(e)
    return 0


def _code_of(error: TorchftXError) -> int:
    if isinstance(error, UnsavedError):
        return UNSAVED
    if isinstance(error, FaultyError):
        return FAULTY
    return EXIT_CODE if isinstance(error, (ConfigError, RefusedError)) else 1


def end_with_a_sentence() -> None:
    """Install an excepthook by which an uncaught `RefusedError` ends the process with its sentence alone and code 2.

    An uncaught `UnsavedError` ends it in the same way with code 73, a `FaultyError` with code 71.
    """
    global _installed
    with _lock:
        if _installed:
            return
        _installed = True
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, (RefusedError, UnsavedError, FaultyError)):
            before(kind, error, trace)
            return
        print(f"torchft_x: {error}", file=sys.stderr, flush=True)
        # The interpreter exits with this code after the atexit functions.
        raise SystemExit(_code_of(error))

    sys.excepthook = hook
