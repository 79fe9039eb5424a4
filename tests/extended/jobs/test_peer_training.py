"""torchft-nightly's own Manager trains under our lighthouse: two groups, one killed with SIGKILL and back."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.extended.rpc.test_peer import HOW
from tests.journeys.jobs import Job, running
from tests.util import clock
from torchft_x import env
from torchft_x.comm.store.create import host_store

pytestmark = [pytest.mark.peer, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).with_name("peer_train.py")


def commits(trainer: Job) -> list[dict[str, Any]]:
    lines = trainer.output().splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"step"') and line.endswith("}")]


def in_pairs(trainer: Job) -> int:
    """Steps committed together with the other group."""
    return sum(commit["groups"] == 2 for commit in commits(trainer))


def test_the_peers_manager_trains_through_a_kill_under_our_lighthouse(tmp_path: Path) -> None:
    python, address, end = env.read(env.PEER_PYTHON), tmp_path / "lighthouse", tmp_path / "end"
    if python is None:
        pytest.skip(HOW)
    serve = [sys.executable, "-m", "torchft_x", "lighthouse", "--min_replicas", "1", "--bind", "127.0.0.1:0"]
    serve += ["--join_timeout_ms", "1000", "--heartbeat_timeout_ms", str(int(clock(1000)))]
    stores = []  # they live as long as the test
    with ExitStack() as stack:

        def start(name: str, command: list[str], **variables: str) -> Job:
            log = tmp_path / f"{name}.log"
            return stack.enter_context(running(command, log, tmp_path / "run", cwd=tmp_path, **variables))

        def group(number: str, life: int) -> Job:
            store, at = host_store("127.0.0.1")
            stores.append(store)
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(at.port)}
            more = {env.LIGHTHOUSE: address.read_text().strip(), "PYTHONPATH": ""}  # theirs knows nothing of ours
            return start(f"{number}-{life}", [python, str(SCRIPT), number, str(end)], **meeting, **more)

        start("service", [*serve, "--address_file", str(address)]).wait_for(address.exists, 20, "the lighthouse")
        survivor, victim = group("0", 0), group("1", 0)
        survivor.wait_for(lambda: min(in_pairs(survivor), in_pairs(victim)) > 20, 90, "both train together")
        victim.process.kill()
        victim.process.wait()
        alone = len(commits(survivor))
        survivor.wait_for(lambda: len(commits(survivor)) > alone + 5, 60, "the survivor goes on")
        back = group("1", 1)
        back.wait_for(lambda: in_pairs(back) > 20, 90, "the group is back and trains with the other")
        end.touch()
        survivor.wait(60)
        back.wait(60)
        digests: dict[int, set[str]] = {}
        for trainer in (survivor, victim, back):
            for commit in commits(trainer):
                digests.setdefault(commit["step"], set()).add(commit["digest"])
    assert all(len(d) == 1 for d in digests.values()), "the groups' parameters differ"
    assert sorted(digests) == list(range(1, len(digests) + 1)), "a step number is missing"
