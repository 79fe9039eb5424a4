"""A group that only asks for quorums, through its library's own group server, as a rank of it does.

The process reads a JSON list per line (``["ask"]``) and answers each with one JSON list: the time of its request, the
time of the reply, and the number of members of the quorum. Times are monotonic seconds, on one clock for all processes
of a host. The Pythons of both libraries run this program.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

_TIMEOUT = 60.0  # seconds


def ours(lighthouse: str, group: str) -> Callable[[], int]:
    """Start torchft_x's group server, and return a function that asks for the next quorum and returns its size."""
    from torchft_x.core.messages.group import Ask
    from torchft_x.core.types import JoinReason, State
    from torchft_x.rpc.group.server import GroupServer

    server = GroupServer(
        replica_id=f"{group}:1", lighthouse=lighthouse, store_address="127.0.0.1:1", world_size=1, commit_vote=True
    )
    state = State()

    def ask() -> int:
        nonlocal state
        asked = Ask(server.next_call(), 0, state, reason=JoinReason.BOUNDARY if state.step else JoinReason.NEW)
        quorum = server.answer(asked, server.shell.submit(asked), _TIMEOUT).quorum
        state = State(state.step + 1, quorum.id)
        return len(quorum.members)

    return ask


def peers(lighthouse: str, group: str) -> Callable[[], int]:
    """Start torchft's group server, and return a function that asks for the next quorum and returns its size."""
    from torchft.coordination import ManagerClient, ManagerServer

    limit = timedelta(seconds=_TIMEOUT)
    server = ManagerServer(
        replica_id=f"{group}:1", lighthouse_addr=lighthouse, hostname="127.0.0.1", bind="127.0.0.1:0",
        store_addr="127.0.0.1:1", world_size=1, heartbeat_interval=timedelta(milliseconds=100), connect_timeout=limit,
        quorum_retries=0,
    )  # fmt: skip
    client = ManagerClient(server.address(), connect_timeout=limit)
    step = 0

    def ask(server: Any = server) -> int:  # the default keeps the server alive as long as this function
        nonlocal step
        quorum = client._quorum(
            group_rank=0, step=step, checkpoint_metadata="", shrink_only=False, timeout=limit, init_sync=False,
            commit_failures=0, reconfigure_handle="",
        )  # fmt: skip
        step += 1
        return int(quorum.replica_world_size)

    return ask


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--library", required=True)
    p.add_argument("--lighthouse", required=True)
    p.add_argument("--group", required=True)
    args = p.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of the libraries goes to the log
    ask = (ours if args.library == "torchft_x" else peers)(args.lighthouse, args.group)
    print(json.dumps("ready"), file=answers)
    for _ in sys.stdin:
        began = time.monotonic()
        members = ask()
        print(json.dumps([began, time.monotonic(), members]), file=answers)
    os._exit(0)  # skip the libraries' shutdown, which is not measured


if __name__ == "__main__":
    main()
