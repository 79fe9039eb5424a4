"""Groups that train apart, as a user starts them: the mission's configurations, the component, and a kill."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.events import workers
from tests.journeys.jobs import SMALL, WARM
from tests.journeys.test_kills import script
from torchft_x.observe.events import read_events

pytestmark = [pytest.mark.timeout(300)]


def test_islands_of_one_and_two_ranks_survive_kills_in_one_job(tmp_path: Path) -> None:
    args = ["--component", "diloco", "--groups", "2", "--islands", "1,2", "--kills", "2"]
    args += ["--what", "mixed", "--seed", "1"]  # rank 0, and a rank that follows
    more = ["--keep", "--dir", str(tmp_path / "run"), "--", *SMALL, "--pace", "0.02"]
    done = script("kill_test", *args, *more, **WARM)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["kills"], result["exit_code"], result["findings"]) == (2, 0, [])
    assert result["shared_steps"] > 4  # exchanges; it ends soon after the last fault
    events = read_events(tmp_path / "run" / "run")
    assert {(w.group, w.rank) for w in workers(events)} == {("0", 0), ("1", 0), ("1", 1)}
