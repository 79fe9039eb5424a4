"""torchft-nightly's own Manager trains under our lighthouse: two groups, one killed with SIGKILL and back."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.extended.rpc.test_peer import HOW
from tests.extended.serving import lighthouse, trainer
from tests.interpreters import PEER_PYTHON
from tests.journeys.jobs import Job
from tests.util import clock
from torchft_x import env

pytestmark = [pytest.mark.peer, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).with_name("peer_train.py")


def commits(group: Job) -> list[dict[str, Any]]:
    lines = group.output().splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"step"') and line.endswith("}")]


def in_pairs(group: Job) -> int:
    """Steps committed together with the other group."""
    return sum(commit["groups"] == 2 for commit in commits(group))


def test_the_peers_manager_trains_through_a_kill_under_our_lighthouse(tmp_path: Path) -> None:
    python, end = env.read(PEER_PYTHON), tmp_path / "end"
    if python is None:
        pytest.skip(HOW)
    waits = ["--join_timeout_ms", "1000", "--heartbeat_timeout_ms", str(int(clock(1000)))]
    with ExitStack() as stack:
        address = stack.enter_context(lighthouse(tmp_path, *waits))

        def group(number: str, attempt: int) -> Job:
            variables = {env.LIGHTHOUSE: address, "PYTHONPATH": ""}  # theirs knows nothing of ours
            command = [python, str(SCRIPT), number, str(end)]
            return stack.enter_context(trainer(tmp_path, f"{number}-{attempt}", command, **variables))

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
        for job in (survivor, victim, back):
            for commit in commits(job):
                digests.setdefault(commit["step"], set()).add(commit["digest"])
    assert all(len(d) == 1 for d in digests.values()), "the groups' parameters differ"
    assert sorted(digests) == list(range(1, len(digests) + 1)), "a step number is missing"
