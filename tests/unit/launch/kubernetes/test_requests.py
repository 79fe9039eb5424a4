"""Limits for the number of requests to the API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.kubernetes.answering import Request, answering
from torchft_x import env
from torchft_x.launch.job.build import ft_app
from torchft_x.launch.kubernetes import jobs
from torchft_x.launch.kubernetes.app import request
from torchft_x.launch.kubernetes.cluster import Cluster
from torchft_x.launch.kubernetes.rules import names
from torchft_x.launch.kubernetes.rules.parts import PodSettings

pytest.importorskip("kubernetes")  # its import takes seconds, which are none of the test's


def test_one_request_for_each_object_two_to_see_the_job_and_two_to_cancel_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(env.KUBECONFIG, str(tmp_path / "kubeconfig"))
    (tmp_path / "train.py").write_text("")
    app = ft_app(str(tmp_path / "train.py"), image="an/image", replicas=3, lighthouse="auto")
    made = request(app, "1234", PodSettings(), "nvidia.com/gpu")
    anchor = {"metadata": {"name": made.app, "uid": "u", "annotations": {names.MINIMUM: "1"}}}

    def answer(asked: Request) -> tuple[int, Any]:
        return (201, asked.body | anchor) if asked.method == "POST" else (200, {"items": [anchor]})

    with answering(answer, tmp_path / "kubeconfig") as asked:
        cluster = Cluster()
        jobs.submit(cluster, made.objects)
        assert [a.method for a in asked] == ["POST"] * len(made.objects)
        asked.clear()
        jobs.find(cluster, made.app)
        assert [a.method for a in asked] == ["GET", "GET"]
        asked.clear()
        assert jobs.cancel(cluster, made.app)
        assert [a.method for a in asked] == ["GET", "DELETE"]
