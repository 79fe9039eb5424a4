"""Members in processes of their own.

The program reads lines ``KIND STORE_ADDRESS RANK SIZE CONFIG_ID``, forks a process for each and prints its pid. The
process prints "ready" once it is configured and then sleeps until it is killed. KIND is the name of a class of
`torchft_x.comm`. SIGTERM ends all.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tests.util import scaled
from torchft_x import comm


def live(kind: str, address: str, rank: int, size: int, config_id: int) -> None:
    options: dict[str, Any] = {"host": "127.0.0.1"} if "Gloo" in kind else {}
    group = getattr(comm, kind)(scaled(30.0), **options)
    group.configure(address, f"replica{rank}", rank, size, config_id)
    print("ready", flush=True)
    while True:
        signal.pause()


def main() -> None:
    children: list[int] = []

    def end(*_: object) -> None:
        for child in children:
            os.kill(child, signal.SIGKILL)  # children are never reaped, so that no pid is reused
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    for line in sys.stdin:
        kind, address, *numbers = line.split()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            live(kind, address, *map(int, numbers))
        children.append(pid)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
