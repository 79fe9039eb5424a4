"""The flight recorder's files, of real gloo groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.torch.comm.conformance import Meeting, ramp
from tests.torch.comm.members import configure, each, several
from tests.util import scaled, wait_for
from torchft_x import env
from torchft_x.comm import flight_recorder
from torchft_x.comm.gloo.group import ProcessGroupGloo
from torchft_x.comm.subprocess.group import ProcessGroupBabyGloo
from torchft_x.errors import CollectiveError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(env.FLIGHT_RECORDER, str(tmp_path / "flight"))
    return tmp_path / "flight"


def gloo() -> ProcessGroupGloo:
    return ProcessGroupGloo(scaled(30), host="127.0.0.1")


def test_an_abort_leaves_one_readable_file_per_rank(folder: Path, meeting: Meeting) -> None:
    with several(2, gloo) as groups:
        configure(groups, meeting(), 41)
        each(groups, lambda rank, group: group.allreduce([ramp(rank)]).wait())
        work = groups[0].allreduce([torch.ones(12345)])
        groups[0].abort(41)
        with pytest.raises(CollectiveError):
            work.wait()
    path = folder / "quorum_41" / "replica0_0.json"
    wait_for(path.exists, what="the file")
    told = json.loads(path.read_text())
    assert (told["quorum_id"], told["replica_id"], told["rank"], told["world_size"]) == (41, "replica0", 0, 2)
    assert "aborted" in told["reason"]
    assert any([12345] in entry["input_sizes"] for entry in told["gloo"]["entries"])
    assert not list(folder.rglob("*.tmp"))


def test_a_child_writes_before_it_is_killed(folder: Path, meeting: Meeting) -> None:
    groups = [ProcessGroupBabyGloo(scaled(30), host="127.0.0.1") for _ in range(2)]
    configure(groups, meeting(), 42)
    work = groups[0].allreduce([torch.ones(12345)])
    groups[1].abort()
    with pytest.raises(CollectiveError):
        work.wait()
    told = json.loads((folder / "quorum_42" / "replica0_0.json").read_text())
    assert "allreduce on rank 0 of 2 of configuration 42 failed" in told["reason"]
    assert any([12345] in entry["input_sizes"] for entry in told["gloo"]["entries"])
    groups[0].shutdown()


def test_a_shutdown_in_peace_leaves_none(folder: Path, meeting: Meeting) -> None:
    with several(2, gloo) as groups:
        for number in (51, 52):
            configure(groups, meeting(), number)
    assert not folder.exists()


def test_where_it_goes() -> None:
    run = {env.RUN_DIR: "/run"}
    assert env.flight_folder({env.FLIGHT_RECORDER: "/somewhere", **run}) == "/somewhere"
    assert env.flight_folder({env.FLIGHT_RECORDER: "1", **run}) == "/run/flight"
    assert env.flight_folder({"TORCHFT_TRIGGER_FR_ON_ABORT": "true", **run}) == "/run/flight"
    assert env.flight_folder({env.FLIGHT_RECORDER: "0", "TORCHFT_TRIGGER_FR_ON_ABORT": "true", **run}) is None
    assert env.flight_folder({env.FLIGHT_RECORDER: "1"}) is None
    assert env.flight_folder(run) is None


def test_old_quorums_are_forgotten_and_names_stay_in_the_folder(folder: Path) -> None:
    for number in range(flight_recorder.MAX_QUORUMS + 5):
        path = flight_recorder.dump(number, "../../a:b", 3, 4, "gone")
        assert path is not None
        assert path.parent.parent == folder
    kept = sorted(int(entry.name.removeprefix("quorum_")) for entry in folder.iterdir())
    assert kept == list(range(5, flight_recorder.MAX_QUORUMS + 5))


def test_what_cannot_be_written_is_only_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(env.FLIGHT_RECORDER, str(tmp_path / "file"))
    assert flight_recorder.dump(1, "a", 0, 1, "x") is None
    assert "can't be written" in caplog.text
