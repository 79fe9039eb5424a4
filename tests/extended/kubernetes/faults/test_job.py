"""A job on the cluster as the trial breaks it: a group whose pod is killed comes back, and nobody else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extended.kubernetes.faults.job import TrainingJob
from tests.extended.kubernetes.faults.many import many
from tests.extended.kubernetes.faults.run import Trial
from tests.extended.kubernetes.shell import Shell

pytestmark = [pytest.mark.timeout(180)]


def test_a_killed_and_an_evicted_pod_come_back_alone(shell: Shell, tmp_path: Path) -> None:
    job = TrainingJob(shell, tmp_path / "run")
    trial = Trial(job)
    job.begin()
    other = job.pod("0")["metadata"]["uid"]
    trial.kill_pod("1")
    trial.evict("1")
    assert job.finish() == []
    assert job.pods("0") == [other]
    assert [row["undone"] for row in trial.rows] == [0, 0]
    # a killed pod may cost the step in hand; one that is told to stop leaves between two steps
    assert [row["dropped"] for row in trial.rows][1] == 0
    # what the survivors never waited for is the victim: less than a pod takes to start
    assert all(row["pause"] < row["whole"] for row in trial.rows)


def test_what_is_asked_of_the_api_server_is_one_request_for_each_object_and_no_more(shell: Shell) -> None:
    found = many(shell, 3)
    assert found["submit"]["requests"] == found["objects"] == 10
    assert found["status"]["requests"] == found["cancel"]["requests"] == 2
