"""Makes the main thread hang on request of `torchft_x chaos` (docs/operate.md#break-it-on-purpose).

Python runs the call between two of its instructions, on the main thread. The other threads go on: the process answers,
but its training stands still, as with a data loader that never returns. If the main thread is inside a library's call,
it runs the call when that returns.
"""

from __future__ import annotations

import ctypes
import math
import time
from typing import Any

_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_NAP = 0.1  # seconds of each sleep, so that the main thread still handles signals
_calls: list[Any] = []  # keeps the callbacks alive, because Python keeps no reference


def hang(argument: bytes) -> bytes:
    """Hang the main thread for `argument` seconds, or for ever if empty. Return ``1`` if it will hang, else ``0``."""
    try:
        seconds = float(argument) if argument else math.inf
    except ValueError:
        return b"0"
    if not seconds > 0:
        return b"0"

    def stand_still(_: Any) -> int:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(min(_NAP, max(0.0, end - time.monotonic())))
        return 0

    call = _CALL(stand_still)
    _calls.append(call)
    return b"0" if ctypes.pythonapi.Py_AddPendingCall(call, None) else b"1"
