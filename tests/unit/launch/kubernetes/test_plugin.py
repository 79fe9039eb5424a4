"""What TorchX's commands show of a job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torchx.specs.api import AppState, AppStatus

from tests.unit.launch.kubernetes.answering import Request, answering
from tests.unit.launch.kubernetes.rules.test_state import RUNS, event, job, over, pod
from torchft_x import env
from torchft_x.launch.plugin.kubernetes import create_scheduler
from torchft_x.launch.schedulers import excepthook

pytest.importorskip("kubernetes")

Json = dict[str, Any]


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(env.KUBECONFIG, str(tmp_path / "kubeconfig"))
    return tmp_path / "kubeconfig"


def status(kubeconfig: Path, jobs: Sequence[Json], pods: Sequence[Json], *events: Json) -> AppStatus:
    items = {"jobs": jobs, "pods": pods, "events": events}

    def answer(asked: Request) -> tuple[int, Any]:
        return 200, {"items": items[asked.path.partition("?")[0].rpartition("/")[2]]}

    with answering(answer, kubeconfig):
        found = create_scheduler("s").describe("team:a")
    assert found is not None
    return AppStatus(found.state, found.num_restarts, found.msg, roles=found.roles_statuses)


def test_a_job_that_failed_says_why_behind_all_parts(kubeconfig: Path) -> None:
    """S7."""
    jobs = [job("lighthouse", end="Complete"), job("trainer", 0), job("trainer", 1, end="Complete")]
    words = over(0, "failed: group 1 was given up: its script raised ValueError.")
    pods = [pod("lighthouse", phase="Succeeded", **words), pod("trainer", 0, **RUNS), pod("trainer", 1, **words)]
    found = status(kubeconfig, jobs, pods)
    assert found.state == AppState.FAILED
    said = found.format()
    assert said.index("Msg: group 1 was given up: its script raised ValueError.") > said.rindex("trainer[1]")


def test_a_job_whose_trainers_wait_is_pending_and_says_why(kubeconfig: Path) -> None:
    jobs = [job("lighthouse"), job("trainer")]
    pods = [pod("lighthouse", **RUNS), pod("trainer", phase="Pending")]
    found = status(kubeconfig, jobs, pods, event("Pod", "p-0", "FailedMount", "no such volume", 1))
    assert found.state == AppState.PENDING
    assert "Msg: trainer/0: its container has not begun" in found.format()
    assert "the cluster warns: no such volume" in found.format()


def test_logs_of_what_has_begun_are_not_waited_for(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchX waits while a job is PENDING."""
    crashed = pod("trainer", restartCount=3, state={"waiting": {"reason": "CrashLoopBackOff"}})
    assert status(kubeconfig, [job("trainer")], [crashed]).state == AppState.PENDING
    monkeypatch.setattr(excepthook, "in_command", lambda name: name == "log")
    assert status(kubeconfig, [job("trainer")], [crashed]).state == AppState.RUNNING
    waits = pod("trainer", phase="Pending")
    assert status(kubeconfig, [job("trainer")], [waits]).state == AppState.PENDING
