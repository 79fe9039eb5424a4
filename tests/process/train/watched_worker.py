"""A process that publishes its status, without a job: python -m tests.process.train.watched_worker FOLDER RANK HOW."""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
import time

from torchft_x import env
from torchft_x.core.commit.step import Step
from torchft_x.core.types import State
from torchft_x.train.introspection import setup
from torchft_x.train.introspection.shared_status import SharedStatus
from torchft_x.train.setup.options import Options


def options(rank: int) -> Options:
    """Return the options of a Manager that is never made."""
    return Options(
        replica_id="7", group_rank=rank, group_world_size=rank + 1, timeout=60.0, quorum_timeout=60.0, quorum_patience=0.0,
        connect_timeout=60.0, lighthouse="http://127.0.0.1:1", port=0, host="127.0.0.1",
        store_host="127.0.0.1", store_port=1, agent_store=False, restart_count=0, token=None, attempt=3,
        attempt_token="",
        run_dir=None, min_replica_size=1,
    )  # fmt: skip


def watch(folder: str, rank: int) -> SharedStatus:
    os.environ[env.ATTEMPT] = str(env.AttemptEnv(folder=folder))
    return setup.status_of(options(rank), Step(min_replica_size=1), "7:attempt")


def telltale_sleep() -> None:
    """Sleep while holding the GIL."""
    ctypes.PyDLL(None).sleep(1000)


def telltale_wait() -> None:
    while True:
        time.sleep(0.05)


def count(status: SharedStatus) -> None:
    """Publish counters as fast as possible. All fields have one value, so that a torn record is detectable."""
    step, n = status._step, 0
    while True:
        n += 1
        step.state, step.quorum_id, step.size = State(n, n), n, n
        status._commits = n
        status.publish()


def leave_slowly(status: SharedStatus) -> None:
    """Delay the end of the process, so that it is observed while it ends."""
    import atexit

    atexit.register(time.sleep, 1000)  # registered before the other handlers, so it runs after them


def fork(status: SharedStatus) -> None:
    """Fork a child (as a DataLoader's worker) that ends normally, though it has this process's status."""
    pid = os.fork()
    if pid == 0:
        status._step.state = State(99, 99)
        status.publish()
        return
    os.waitpid(pid, 0)
    status._step.state = State(5, 5)
    status.publish()
    telltale_wait()


def exits(folder: str, times: int) -> None:
    """Fork children that end in the usual ways, each at a random moment. Print how many ended with each exit code."""
    ended: dict[int, int] = {}
    for rank in range(times):
        pid = os.fork()
        if pid == 0:
            return _end(folder, rank)
        end = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        ended[end] = ended.get(end, 0) + 1
    print(ended, flush=True)
    return None


def _end(folder: str, rank: int) -> None:
    watch(folder, rank)
    if rank % 3 == 0:
        threading.Thread(target=telltale_wait, daemon=True).start()
    partial = f"{folder}/now.{rank}"
    with open(partial, "w") as f:
        f.write(f"{rank} {os.getpid()}")
    os.replace(partial, f"{folder}/now")
    time.sleep(random.Random(rank).random() * 0.03)
    if rank % 3 == 1:
        raise SystemExit(7)
    if rank % 3 == 2:
        sys.excepthook = lambda *_: None
        raise ArithmeticError


if __name__ == "__main__":
    folder, number, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if how.startswith("exits"):
        if how == "exits-with-torch":
            import torch.distributed  # noqa: F401
        exits(folder, number)
    else:
        if how == "leave":
            leave_slowly(None)  # type: ignore[arg-type]
        shown = watch(folder, number)
        {
            "sleep": telltale_sleep,
            "count": lambda: count(shown),
            "leave": lambda: None,
            "fork": lambda: fork(shown),
        }[how]()
