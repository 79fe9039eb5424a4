"""Strangers call at every port that a group's processes listen on, without a token. What they write is never executed."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.process.launch.driven import Driven, drive  # noqa: F401
from tests.process.launch.test_strangers import SCRIPT, Payload, below, wait_until_up, write_into_store
from tests.util import listeners, wait_for

pytestmark = [pytest.mark.timeout(300)]


def test_what_a_stranger_writes_into_the_groups_store_is_not_executed(drive, tmp_path: Path) -> None:
    run = drive(SCRIPT, workers=2)
    wait_until_up(run, 2)
    executed = tmp_path / "executed"
    name = "group-1-attempt-0"
    written = [
        at.port for at in listeners(below(run)) if write_into_store(at.port, name, pickle.dumps(Payload(executed)))
    ]
    assert written  # the workers' own store: loopback, no pickle
    with pytest.raises(AssertionError):
        wait_for(executed.exists, 3.0, "the stranger's code")
