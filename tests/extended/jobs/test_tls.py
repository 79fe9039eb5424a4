"""A job with --tls goes through a kill of a worker and of the lighthouse, as tests/journeys/test_kills.py without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.journeys.jobs import SMALL, WARM
from tests.journeys.test_kills import script
from torchft_x import env
from torchft_x.observe.events import read_events

pytestmark = [pytest.mark.timeout(300)]


def test_two_groups_with_tls_survive_kills_with_equal_parameters(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    faults = ("--groups", "2", "--kills", "1", "--lighthouse", "1")
    variables = {**WARM, env.TLS: "on"}
    done = script("kill_test", *faults, "--keep", "--dir", folder, "--", *SMALL, "--pace", "0.04", **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "result.json").read_text())
    assert (result["kills"], result["lighthouse_kills"]) == (1, 1)
    assert (result["exit_code"], result["findings"]) == (0, [])
    started = [e["address"] for e in read_events(folder / "run") if e["event"] == "start" and "address" in e]
    assert started
    assert all(address.startswith("https://") for address in started), started
