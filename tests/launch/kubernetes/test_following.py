"""Following a log asks the API server when something has changed, not again and again."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.launch.kubernetes.answering import Asked, answering
from tests.util import scaled, wait_for
from torchft_x import env
from torchft_x.core.kubernetes import names
from torchft_x.launch.kubernetes import jobs
from torchft_x.launch.kubernetes.cluster import Cluster

Json = dict[str, Any]
LABELS = {names.INSTANCE: "app", names.ROLE: "trainer", names.REPLICA: "0", names.MANAGED_BY: names.OURS}
PODS = "/api/v1/namespaces/team/pods"


class Server:
    """A job of one group, whose pod has no container until `begin`, and is over behind its log."""

    def __init__(self, *, may_watch: bool = True) -> None:
        self.may_watch = may_watch
        self.begun = threading.Event()
        self.ended = False

    def answer(self, asked: Asked) -> tuple[int, Any]:
        if "watch=True" in asked.path:
            assert "resourceVersion=7" in asked.path
            if not self.may_watch:
                return 403, {"message": 'pods is forbidden: User "u" cannot watch resource "pods" in API group ""'}
            self.begun.wait(scaled(20))
            return 200, {"type": "MODIFIED", "object": {}}
        if asked.path.endswith("/log") or "/log?" in asked.path:
            self.ended = True
            return 200, "2026-11-26T08:00:00Z trains\n"
        items = [self._pod()] if asked.path.startswith(PODS) else []
        items = [self._job()] if "/jobs" in asked.path else items
        return 200, {"metadata": {"resourceVersion": "7"}, "items": items}

    def _job(self) -> Json:
        status = (
            {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]} if self.ended else {"active": 1}
        )
        return {
            "metadata": {"name": "app-trainer-0", "labels": LABELS, "annotations": {names.MINIMUM: "1"}},
            "status": status,
        }

    def _pod(self) -> Json:
        running = {"running": {"startedAt": "2026-11-26T08:00:00Z"}}
        state = running if self.begun.is_set() else {"waiting": {"reason": "ContainerCreating"}}
        status = {
            "phase": "Running" if self.begun.is_set() else "Pending",
            "containerStatuses": [{"name": "trainer", "restartCount": 0, "state": state}],
        }
        return {"metadata": {"name": "p", "uid": "1", "labels": LABELS}, "status": status}


@pytest.mark.parametrize("may_watch", [True, False])
def test_a_pod_that_has_no_log_yet_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_watch: bool) -> None:
    """Who may not watch looks again, and is not refused."""
    monkeypatch.setenv(env.KUBECONFIG, str(tmp_path / "kubeconfig"))
    monkeypatch.setattr(jobs, "_LOOK", 0.1)
    server = Server(may_watch=may_watch)
    with answering(server.answer, tmp_path / "kubeconfig") as asked:
        cluster = Cluster()
        found = jobs.find(cluster, "app")
        assert found is not None
        (part,) = found.parts
        lines: list[str] = []
        thread = threading.Thread(
            target=lambda: lines.extend(jobs.lines(cluster, "app", part, follow=True)), daemon=True
        )
        thread.start()

        def watches() -> int:
            return sum("watch=True" in one.path for one in asked)

        wait_for(lambda: watches() == 1 if may_watch else watches() > 2, 10, "the watch")
        server.begun.set()
        thread.join(scaled(10))
        assert lines == ["trains\n"]
        if may_watch:
            assert watches() == 1  # behind its log the cluster's word was there
