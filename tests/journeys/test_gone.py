"""A real job under the supervisor: short stops, busy cores, stopped workers. How long the others stand still is printed,
and never asserted closer than needed to tell one rule from the other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.journeys.hangs import hang, lost, three_groups
from tests.journeys.jobs import Job

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """One for all: each test leaves it with its three groups together, and looks only at what happened since it began."""
    with three_groups(tmp_path_factory.mktemp("gone")) as job:
        yield job


def test_a_stopped_worker_is_not_waited_for_and_comes_back(job: Job) -> None:
    began = time.time()
    worker = job.worker("1")
    stall = hang(job, "1")
    print(f"the others stood still for {stall:.2f} s, load {os.getloadavg()[0]:.1f}")
    reasons = lost(job, began)
    assert reasons
    assert all("worker 0 is stopped" in reason for reason in reasons), reasons
    assert job.worker("1") == worker  # it was told, and came back
