"""One group as a process of its own, for the tests that kill: writes a digest of its parameters at every commit.

    python -m tests.train.worker GROUP LIGHTHOUSE OUT_FILE STOP_FILE

It trains to the step written in STOP_FILE, once that exists. SIGTERM makes it leave at the next boundary.
"""

from __future__ import annotations

import hashlib
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.train.jobs import Trainer


def digest(trainer: Trainer) -> str:
    h = hashlib.sha256()
    for value in trainer.net.state_dict().values():
        h.update(bytes(value.contiguous().untyped_storage()))
    return h.hexdigest()


def main(group: int, lighthouse: str, path: str, stop: Path, **options: Any) -> None:
    leaving: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: leaving.append(number))
    trainer = Trainer(group, lighthouse, seed=group + int(time.time()), **{"rehearse": True, **options})
    with open(path, "a", buffering=1) as out:
        while not leaving and (not stop.exists() or trainer.manager.current_step() < int(stop.read_text())):
            committed = trainer.step()
            now = time.monotonic()
            if committed:
                out.write(f"commit {trainer.manager.current_step()} {digest(trainer)} {now}\n")
            else:
                out.write(f"drop {trainer.manager.current_step()} - {now}\n")
            time.sleep(0.005)  # a step that takes a moment, so that kills hit its middle
    trainer.manager.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]))
