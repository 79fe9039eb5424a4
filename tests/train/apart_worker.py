"""One group that trains apart, as a process of its own, for the tests that kill.

    python -m tests.train.apart_worker GROUP LIGHTHOUSE OUT_FILE STOP_FILE ALGORITHM [NAME=VALUE ...]

Writes a digest of what the groups have in common after each exchange, and trains to the exchange in STOP_FILE.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

from tests.train.apart import Apart, Weights


def digest(weights: Weights) -> str:
    h = hashlib.sha256()
    for value in weights:
        h.update(bytes(value.contiguous().untyped_storage()))
    return h.hexdigest()


def main(group: int, lighthouse: str, path: str, stop: Path, algorithm: str, settings: list[str]) -> None:
    kwargs = {name: json.loads(value) for name, _, value in (s.partition("=") for s in settings)}
    apart = Apart(group, lighthouse, algorithm=algorithm, seed=group + int(time.time()), **kwargs)
    with open(path, "a", buffering=1) as out, apart.loop:
        seen = -1
        while True:
            if apart.loop.exchanges != seen:
                seen = apart.loop.exchanges
                out.write(f"commit {seen} {digest(apart.common())} {time.monotonic()}\n")
                if stop.exists() and seen >= int(stop.read_text()):
                    break
            apart.step()
            time.sleep(0.003)  # a step that takes a moment, so that kills hit inner steps as well as exchanges
    apart.manager.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5], sys.argv[6:])
