"""How long processes may take that were told to end, and what a platform sees of a supervisor that lives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.util import wait_for
from torchft_x.launch.kubernetes.rules import pod
from torchft_x.launch.supervisor import requests
from torchft_x.launch.supervisor.requests import StopRequests, grace_is_over, superseded, watch_fence
from torchft_x.timing import TIMING


@pytest.mark.parametrize(
    ("waited", "notice", "saves", "over"),
    [
        (4.9, 10.0, False, False),
        (5.1, 10.0, False, True),
        (5.1, 10.0, True, False),
        (8.1, 10.0, True, True),
        (27.9, 30.0, True, False),
        (28.1, 30.0, True, True),
        (5.1, 30.0, False, True),  # who doesn't save has no use for it
        (4.9, 3.0, True, False),  # never less than without
    ],
)
def test_who_saves_gets_what_the_sender_gives(waited: float, notice: float, saves: bool, over: bool) -> None:
    """Times are counted in halves of a supervisor's last acts: seconds at scale 1."""
    unit = TIMING.last_acts / 2
    assert grace_is_over(unit * waited, unit * 5.0, unit * notice, saves=saves) is over


def test_a_supervisor_that_sleeps_renews_a_file_by_which_a_probe_tells_it_from_a_frozen_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5: a frozen container was never started again."""
    file = tmp_path / "alive"
    monkeypatch.setattr(requests, "_LONGEST", 0.01)
    stops = StopRequests(file)
    assert _probe(file) == "the supervisor is frozen, or has not begun"
    stops.wait(lambda: file.exists(), 60.0)  # a drained group sleeps so
    assert _probe(file) is None
    os.utime(file, (1.0, 1.0))
    assert _probe(file) == "the supervisor is frozen, or has not begun"
    stops.sleep(60.0)
    assert _probe(file) is None


def _probe(file: Path) -> object:
    """What the probe's process would exit with."""
    with pytest.raises(SystemExit) as caught:
        exec(pod._LOOK.replace(pod.ALIVE, str(file)), {})
    return caught.value.code


def test_whoever_wrote_last_is_the_newest(tmp_path: Path) -> None:
    file = tmp_path / "newest"
    assert not superseded(file, "7_1-r0")  # nobody can be asked
    file.write_text("7_1-r0\n")
    assert not superseded(file, "7_1-r0")
    file.write_text("")
    assert not superseded(file, "7_1-r0")
    file.write_text("9_1-r0\n")
    assert superseded(file, "7_1-r0")
    file.write_bytes(b"\xff\xfe")
    assert not superseded(file, "7_1-r0")


def test_one_that_was_started_again_elsewhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "POLL_SLOW", 0.01)
    reported: list[str] = []
    file = tmp_path / "newest"
    file.write_text("7_1-r0\n")
    watch_fence(str(file), "7_1-r0", reported.append)
    assert reported == []
    file.write_text("9_1-r0\n")
    wait_for(lambda: reported, 10, "the older one to be told")
    assert reported == ["it was started again elsewhere, and this is the one before"]
