"""A member in a process of its own: ``python -m tests.comm.member STORE_ADDRESS RANK SIZE CONFIG_ID``.

Prints "ready" once it is configured and then does nothing, until its input ends or somebody kills or stops it.
"""

from __future__ import annotations

import sys

from tests.util import scaled
from torchft_x.comm.gloo import ProcessGroupGloo


def main() -> None:
    address, rank, size, config_id = sys.argv[1], *map(int, sys.argv[2:5])
    group = ProcessGroupGloo(scaled(30.0), host="127.0.0.1")
    group.configure(address, f"replica{rank}", rank, size, config_id)
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
