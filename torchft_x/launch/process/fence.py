"""A file that names which of several starts of a part is the newest: whoever started it last has written its name there.

Whoever starts a part elsewhere can't always end what it was before: that may run on behind a broken network, and would take
turns with the new one when the network is back, each fencing the other's lives.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from torchft_x import env

EACH = 2.0
"""Seconds between two looks."""


def superseded(file: Path, mine: str) -> bool:
    """Whether another one has begun since. A file that can't be read says nothing."""
    try:
        text = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return False
    return bool(text) and text != mine


def watch_fence(environ: Mapping[str, str], then: Callable[[str], object]) -> None:
    """Call `then(sentence)` once, on a thread of its own, when this start is superseded; nothing where no file was named. The file
    system may hang meanwhile."""
    file, mine = env.read(env.FENCE_FILE, None, environ), env.read(env.FENCE, None, environ)
    if not file or not mine:
        return

    def look() -> None:
        never = threading.Event()
        while not superseded(Path(file), mine):
            never.wait(EACH)
        then("it was started again elsewhere, and this is the one before")

    threading.Thread(target=look, name="fence", daemon=True).start()
