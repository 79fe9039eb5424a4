"""A job on the cluster as the trial breaks it: an evicted group and one whose node is lost come back alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extended.kubernetes.faults.job import TrainingJob
from tests.extended.kubernetes.faults.run import Trial
from tests.extended.kubernetes.shell import Shell

pytestmark = [pytest.mark.timeout(400)]


def test_an_evicted_pod_and_a_lost_node_s_come_back_alone(shell: Shell, tmp_path: Path) -> None:
    job = TrainingJob(shell, tmp_path / "run")
    trial = Trial(job)
    job.begin()
    other = job.pod("0")["metadata"]["uid"]
    trial.evict("1")
    assert job.pods("0") == [other]
    trial.lose_node()
    assert job.finish() == []
    assert [row["undone"] for row in trial.rows] == [0, 0]
    assert trial.rows[0]["dropped"] == 0, "an evicted pod is told to stop: it leaves between two steps"
    # what the survivors never waited for is the victim: less than a pod takes to start
    assert all(row["pause"] < row["whole"] for row in trial.rows)
