"""A log is followed by one watch for what is not there yet; the answers of the API server, in the order in which they came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.kubernetes.answering import Request, answering
from torchft_x import env
from torchft_x.launch.kubernetes import jobs
from torchft_x.launch.kubernetes.cluster import Cluster
from torchft_x.launch.kubernetes.rules import names

LABELS = {names.INSTANCE: "app", names.ROLE: "trainer", names.REPLICA: "0", names.MANAGED_BY: names.OURS}
AT = {"jobs": "/apis/batch/v1/namespaces/team/jobs?", "pods": "/api/v1/namespaces/team/pods?", "log": "/p/log?"}


def _job(**status: Any) -> tuple[str, int, Any]:
    metadata = {"name": "app-trainer-0", "labels": LABELS, "annotations": {names.MINIMUM: "1"}}
    return "jobs", 200, {"items": [{"metadata": metadata, "status": status}]}


def _pod(phase: str, state: Any) -> tuple[str, int, Any]:
    status = {"phase": phase, "containerStatuses": [{"name": "trainer", "restartCount": 0, "state": state}]}
    pod = {"metadata": {"name": "p", "uid": "1", "labels": LABELS}, "status": status}
    return "pods", 200, {"metadata": {"resourceVersion": "7"}, "items": [pod]}


PENDING = _pod("Pending", {"waiting": {"reason": "ContainerCreating"}})
RUNNING = _pod("Running", {"running": {"startedAt": "2026-11-26T08:00:00Z"}})
WAITS = (_job(active=1), PENDING, PENDING)  # its Jobs and pods first, then the pods of the part
RUNS = (_job(active=1), RUNNING, RUNNING, ("log", 200, "2026-11-26T08:00:00Z trains\n"))
OVER = (_job(succeeded=1, conditions=[{"type": "Complete", "status": "True"}]), *RUNS[1:])
CHANGE = ("watch", 200, {"type": "MODIFIED", "object": {}})
REFUSAL = ("watch", 403, {"message": 'pods is forbidden: User "u" cannot watch resource "pods" in API group ""'})


@pytest.mark.parametrize(
    "waiting", [[*WAITS, CHANGE], [*WAITS, REFUSAL, *WAITS, REFUSAL]], ids=["watched", "looked at again"]
)
def test_a_pod_that_has_no_log_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: list[tuple[str, int, Any]]
) -> None:
    """After its log the part is over, so nothing more is watched. The same line is not printed twice."""
    monkeypatch.setenv(env.KUBECONFIG, str(tmp_path / "kubeconfig"))
    monkeypatch.setattr(jobs, "POLL_SLOW", 0.0)
    answers = [*WAITS[:2], *waiting, *RUNS, *OVER]

    def answer(asked: Request) -> tuple[int, Any]:
        kind, status, said = answers.pop(0) if answers else ("nothing", 404, "")
        if kind == "watch":
            assert "watch=True" in asked.path
            assert "resourceVersion=7" in asked.path
        else:
            assert AT[kind] in asked.path
            assert "watch" not in asked.path
        return status, said

    with answering(answer, tmp_path / "kubeconfig"):
        cluster = Cluster()
        found = jobs.find(cluster, "app")
        assert found is not None
        (part,) = found.parts
        assert list(jobs.lines(cluster, "app", part, follow=True)) == ["trains\n"]
    assert answers == []
