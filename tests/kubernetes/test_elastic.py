"""`torchft_x scale`, `status` and orders for a job of kubernetes_ft on a real control plane, while it trains."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kubernetes.shell import MODEL, Shell, handle_of
from tests.util import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _overview(shell: Shell, handle: str) -> dict[str, Any]:
    return dict(json.loads(shell.own("status", handle, "--json")))


def _trains(shell: Shell, handle: str, groups: int) -> dict[str, Any] | None:
    """What is known, once so many train and nobody else is there."""
    found = _overview(shell, handle)
    rows = {row["group"]: row["does"] for row in found["groups"]}
    rows = {group: does for group, does in rows.items() if does != "left"}
    return found if list(rows.values()) == ["trains"] * groups else None


def test_scaled_up_and_down_while_it_trains_without_a_dropped_step(shell: Shell) -> None:
    shell.become_guest()
    shell.allow_guest()
    said = shell.run("--replicas", "2", "--", *MODEL, "--steps", "1000000", "--pace", "0.05")
    namespace, _, app = handle_of(said).rpartition("/")[2].partition(":")
    handle = f"kubernetes_ft://{namespace}/{app}"
    wait_for(lambda: shell.space.ready(**{"torchft-x/role": "lighthouse"}), 60, "the lighthouse")
    wait_for(lambda: _trains(shell, handle, 2), 120, "two groups that train")
    assert "has 3 groups now; it had 2" in shell.own("scale", handle, "--replicas", "3")
    three = wait_for(lambda: _trains(shell, handle, 3), 120, "three groups that train")
    assert three["wanted"] == ["0", "1", "2"]
    assert "has 2 groups now; it had 3" in shell.own("scale", handle, "--replicas", "2")
    two = wait_for(lambda: _trains(shell, handle, 2), 60, "two groups that train")
    assert two["step"] > three["step"]
    assert two["counts"]["dropped_steps"] == 0
    assert two["counts"]["undone_steps"] == 0
    jobs = [o["metadata"]["name"] for o in shell.space.list("batch/v1/jobs")]
    assert sorted(jobs) == sorted(f"{app}-{part}" for part in ("lighthouse-0", "trainer-0", "trainer-1"))
    assert "must lie between 1" in shell.own("scale", handle, "--replicas", "0", code=2)
    # orders
    before = two["counts"]["restarts"]
    assert "Group 1 is killed by request" in shell.own("kill", "1", handle)
    wait_for(lambda: _overview(shell, handle)["counts"]["restarts"] > before, 60, "the next life")
    assert "Group 1 is drained by request" in shell.own("drain", "1", handle)
    wait_for(lambda: "drained" in shell.own("status", handle, "--once"), 60, "a drained group")
    assert "Group 1 is resumed by request" in shell.own("resume", "1", handle)
    wait_for(lambda: _trains(shell, handle, 2), 60, "two groups that train")
    assert "There is no group" in shell.own("kill", "7", handle, code=1)
    shell.own("cancel", handle)
    assert "There is no job" in shell.own("status", handle, code=2)
