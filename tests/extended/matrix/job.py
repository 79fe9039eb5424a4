"""Script of the matrix's jobs: records its start, queries the lighthouse, and ends. It imports no test code."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torchft_x
from torchft_x import env
from torchft_x.net import parse_address
from torchft_x.rpc.status_query import lighthouse_status

_TIMEOUT = 10.0  # seconds for the query


def main() -> None:
    address = os.environ[env.LIGHTHOUSE]
    token = env.read_token()
    seen = {
        "package": torchft_x.__file__,
        "groups": os.environ[env.NUM_REPLICA_GROUPS],
        "world_size": os.environ[env.WORLD_SIZE],
        "lighthouse": address,
        "token": bool(token),
        "asked": sorted(lighthouse_status(parse_address(address), token, _TIMEOUT)),
        "python": sys.executable,
        "diloco": json.loads(env.read(env.FAULT_TOLERANCE, "{}")),
    }
    name = f"{os.environ[env.REPLICA_GROUP_ID]}-{os.environ[env.RANK]}.json"
    Path(sys.argv[1], name).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
