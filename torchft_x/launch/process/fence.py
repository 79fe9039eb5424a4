"""Fence file: it holds the name of the newest of several starts of a supervisor, written by the launcher at that start.

A launcher that starts a supervisor elsewhere can't always stop the earlier one, which may run on behind a broken network.
When the network is back, the two would fence each other's attempts in turn, so the earlier one stops by this file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

EACH = 2.0
"""Seconds between two reads of the file."""


def superseded(file: Path, mine: str) -> bool:
    """Return whether the file names a newer start than `mine`. A file that can't be read does not count."""
    try:
        text = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return False
    return bool(text) and text != mine


def watch_fence(file: str, mine: str, then: Callable[[str], object]) -> None:
    """Call `then(sentence)` once, on a thread of its own, when the start `mine` is superseded.

    The thread of its own is needed because the file system may hang.
    """

    def poll() -> None:
        never = threading.Event()
        while not superseded(Path(file), mine):
            never.wait(EACH)
        then("it was started again elsewhere, and this is the one before")

    threading.Thread(target=poll, name="fence", daemon=True).start()
