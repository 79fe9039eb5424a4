"""A job of plain objects on the cluster: a group whose pod is killed comes back, and nobody else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.faults.run import Trial


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_killed_and_an_evicted_pod_come_back_alone(kubernetes: Cluster, tmp_path: Path) -> None:
    trial = Trial(kubernetes, tmp_path, {})
    trial.begin()
    other = trial.pod("0")["metadata"]["uid"]
    trial.kill_pod("1")
    trial.evict("1")
    assert trial.finish() == []
    assert trial.pods("0") == [other]
    assert [row["undone"] for row in trial.rows] == [0, 0]
    # a killed pod may cost the step in hand; one that is told to stop leaves between two steps
    assert [row["dropped"] for row in trial.rows][1] == 0
    # what the survivors never waited for is the victim: less than a pod takes to start
    assert all(row["pause"] < row["whole"] for row in trial.rows)
