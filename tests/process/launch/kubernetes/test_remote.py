"""What is asked of a cluster about a running job, and what becomes of its answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.core.kubernetes.test_scale import _jobs
from tests.unit.core.kubernetes.test_state import RUNS, pod
from tests.unit.launch.kubernetes.answering import answering
from tests.unit.launch.kubernetes.test_remote import (
    _cluster,
    _lighthouse,
    kubeconfig,  # noqa: F401
)
from torchft_x.core.kubernetes import names
from torchft_x.launch.kubernetes import commands, scale
from torchft_x.launch.kubernetes.cluster import Cluster, ClusterError
from torchft_x.launch.status.commands import order, status


def test_a_group_is_made_when_the_lighthouse_knows_it_and_not_before(kubeconfig: Path) -> None:
    known = [["0", "1"], ["0", "1"], ["0", "1", "2"]]
    others = _cluster(_jobs(2), [_lighthouse()])
    with answering(
        lambda asked: (200, {"wanted": known.pop(0)}) if "/proxy/" in asked.path else others(asked), kubeconfig
    ) as asked:
        made = scale.resize(Cluster(), "a-1", 3)
    assert (made.before, made.groups) == (2, ("0", "1", "2"))
    changes = [(a.method, a.path.rpartition("/")[2]) for a in asked if a.method != "GET"]
    assert changes == [("PATCH", "a-1"), ("PATCH", "a-1-lighthouse-0-x"), ("POST", "jobs")]
    assert asked[-1].method == "POST"
    note, settled = (a.body for a in asked if a.method == "PATCH")
    assert '"groups": ["0", "1", "2"]' in note["data"]["groups.json"]
    assert settled == {"metadata": {"annotations": {names.GROUPS: "3"}}}


def test_a_lighthouse_that_does_not_hear_of_it_changes_nothing(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "_HEARD", 0.5)
    with (
        answering(_cluster(_jobs(3), [], (200, {"wanted": ["0", "1", "2"]})), kubeconfig) as asked,
        pytest.raises(ClusterError, match=r"it has the groups .* nothing was made or deleted"),
    ):
        scale.resize(Cluster(), "a-1", 2)
    assert {a.method for a in asked} == {"GET", "PATCH"}


def test_status_and_orders_of_a_job_that_is_over_or_none(kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    over = _jobs(1)
    over[0]["status"] = {"conditions": [{"type": "Failed", "status": "True", "message": "it had enough"}]}
    with answering(_cluster(over, []), kubeconfig):
        assert status(["kubernetes_ft://team/a-1"]) == 0
        assert "failed with code 1: it had enough." in capsys.readouterr().out
        assert order("kill", ["1", "kubernetes_ft://team/a-1"]) == 2
        assert "Nothing of the job a-1 runs any more" in capsys.readouterr().err
    with answering(_cluster([], []), kubeconfig):
        assert status(["kubernetes_ft://team/a-1"]) == 2
        assert "no job a-1 in the namespace team" in capsys.readouterr().err


def test_the_log_of_all_pods_of_a_replica_the_oldest_first(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = pod("trainer", 1, phase="Failed", made=1, **{"state": {"terminated": {"exitCode": 1}}})
    newest = pod("trainer", 1, made=2, **RUNS)
    logs = {"p_1": "first\n", "p_2": "second\n"}
    with answering(_cluster([], [newest, failed], **logs), kubeconfig) as asked:
        assert commands.main("log", ["kubernetes_ft://team/a-1/trainer/1"]) == 0
        assert capsys.readouterr().out == "first\nsecond\n"
        assert "replica%3D1" in asked[0].path
    with answering(_cluster([], []), kubeconfig):
        assert commands.main("log", ["kubernetes_ft://team/a-1/trainer/2"]) == 2
        assert "no pod of trainer/2" in capsys.readouterr().err
        assert commands.main("log", ["kubernetes_ft://team/a-1"]) == 2
        assert "names no replica" in capsys.readouterr().err
