"""A main thread that doesn't come, because somebody asked for that: `torchft_x chaos` (docs/chaos.md).

Python runs the call between two of its instructions, on the main thread. Meanwhile the other threads go on: the process is heard, and
its training stands still, as with a data loader that never returns. A main thread that is inside of a library's call comes to it when
that returns.
"""

from __future__ import annotations

import ctypes
import math
import time
from typing import Any

_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_NAP = 0.1  # seconds: what signals do to a main thread they still do
_calls: list[Any] = []  # asked for; Python keeps no reference


def hang(argument: bytes) -> bytes:
    """Keep the main thread for so many seconds; none: for ever. ``1`` if it will be, else ``0``."""
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
