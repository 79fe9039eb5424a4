"""Strangers call at every port that a group's processes listen on, without a token. What they write is never executed."""

from __future__ import annotations

import base64
import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.process.launch.driven import Driven, drive  # noqa: F401
from tests.util import listeners, wait_for
from torchft_x.launch.process import process_tree

pytestmark = [pytest.mark.timeout(300)]

# Each rank says that it is up once it has met the others in torch's own store.
SCRIPT = """
import os, sys, time, torch.distributed as dist
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False)
store.add("up", 1)
print("up", os.getpid(), flush=True)
time.sleep(1000)
"""


class Payload:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._path),)


def write_into_store(port: int, name: str, payload: bytes) -> bool:
    """What the attacker does: put a pickle where torchrun's rendezvous keeps its state. False: nobody there is a store."""
    try:
        store = dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=3), wait_for_workers=False)
        store.set(f"torch.rendezvous.{name}", base64.b64encode(payload))
        store.num_keys()  # a `set` is not acknowledged
    except RuntimeError:
        return False
    return True


def below(run: Driven) -> list[int]:
    return [run.process.pid, *process_tree.descendants(run.process.pid)]


def wait_until_up(run: Driven, workers: int) -> None:
    wait_for(lambda: run.out.read_text().count("up ") >= workers or run.process.poll() is not None, 90, "the workers")
    assert run.process.poll() is None, run.err.read_text()


def test_a_group_on_one_node_is_reached_from_this_host_only(drive) -> None:
    """What of it listens before the script itself does: the store for `init_process_group`."""
    run = drive(SCRIPT, workers=2)
    wait_until_up(run, 2)
    found = listeners(below(run))
    assert found
    assert all(at.host.startswith("127.") or at.host == "::1" for at in found), found
