"""A replica group as a process, for tests that kill it. It commits steps until it ends, and never loads torch.

    python -m tests.process.rpc.member REPLICA_ID LIGHTHOUSE [ATTEMPT_TOKEN]

It prints ``step N QUORUM_ID`` for each committed step, and runs until it is killed or its input ends.
"""

from __future__ import annotations

import os
import sys
import threading

from tests import rank_calls
from torchft_x.core.types import AttemptId, JoinReason, State
from torchft_x.errors import DeadlineError
from torchft_x.rpc.group.server import GroupServer


def main() -> None:
    replica_id, lighthouse, token = (*sys.argv[1:4], "")[:3]
    threading.Thread(
        target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True
    ).start()  # end with the parent, which holds the other end of stdin
    server = GroupServer(
        replica_id=replica_id,
        lighthouse=lighthouse,
        store_address="",
        world_size=1,
        bind="127.0.0.1:0",
        attempt_id=AttemptId(0, 1.0, token),
    )
    state, reason = State(), JoinReason.NEW
    while True:
        try:
            quorum = rank_calls.quorum(server, state=state, reason=reason, timeout=60.0).quorum
        except DeadlineError:
            continue
        top = quorum.top
        ok, _ = rank_calls.commit(server, quorum.id, top.step)
        state, reason = (State(top.step + 1, quorum.id), JoinReason.BOUNDARY) if ok else (state, JoinReason.FAILED)
        print("step", state.step, quorum.id, flush=True)


if __name__ == "__main__":
    main()
