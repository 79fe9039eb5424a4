"""Fence file: it holds the name of the newest of several starts of a supervisor, written by the launcher at that start.

A launcher that starts a supervisor elsewhere can't always stop the earlier one, which may run on behind a broken network.
When the network is back, the two would fence each other's attempts in turn, so the earlier one stops by this file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from torchft_x import env

EACH = 2.0
"""Seconds between two reads of the file."""


def superseded(file: Path, mine: str) -> bool:
    """Return whether the file names a newer start than `mine`. A file that can't be read does not count."""
    try:
        text = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return False
    return bool(text) and text != mine


def watch_fence(environ: Mapping[str, str], then: Callable[[str], object]) -> None:
    """Call `then(sentence)` once, on a thread of its own, when this start is superseded. Do nothing if no file is named.

    The thread of its own is needed because the file system may hang.
    """
    file, mine = env.read(env.FENCE_FILE, None, environ), env.read(env.FENCE, None, environ)
    if not file or not mine:
        return

    def poll() -> None:
        never = threading.Event()
        while not superseded(Path(file), mine):
            never.wait(EACH)
        then("it was started again elsewhere, and this is the one before")

    threading.Thread(target=poll, name="fence", daemon=True).start()
