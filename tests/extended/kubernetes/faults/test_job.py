"""A job on the cluster as the trial breaks it: a group whose pod or node is lost comes back, and nobody else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extended.kubernetes.faults.job import TrainingJob
from tests.extended.kubernetes.faults.run import Trial
from tests.extended.kubernetes.shell import Shell

pytestmark = [pytest.mark.timeout(400)]


def test_a_killed_and_an_evicted_pod_and_a_lost_node_s_come_back_alone(shell: Shell, tmp_path: Path) -> None:
    job = TrainingJob(shell, tmp_path / "run")
    trial = Trial(job)
    job.begin()
    other = job.pod("0")["metadata"]["uid"]
    trial.kill_pod("1")
    trial.evict("1")
    assert job.pods("0") == [other]
    trial.lose_node()
    assert job.finish() == []
    assert [row["undone"] for row in trial.rows] == [0, 0, 0]
    # a killed pod may cost the step in hand; one that is told to stop leaves between two steps
    assert trial.rows[1]["dropped"] == 0
    # what the survivors never waited for is the victim: less than a pod takes to start
    assert all(row["pause"] < row["whole"] for row in trial.rows)
