"""What is read of a job, and what of a file that is no such thing."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from torchft_x.launch.job.states import UnreadableError
from torchft_x.launch.keeper import record
from torchft_x.launch.keeper.record import JobRecord, Pid, ReplicaRecord, RoleRecord
from torchft_x.net import boot_id


def job(run_dir: Path, **changes: Any) -> JobRecord:
    replica = ReplicaRecord(
        id=0, state="RUNNING", command=("a", "b"), process=Pid(pid=1, ticks=2), starts=1, restarts=2, last_exit="x"
    )
    usual = JobRecord(
        app_id="app", session="torchx", state="RUNNING", reason="", run_dir=str(run_dir), log_dir=str(run_dir / "replicas"),
        host=socket.gethostname(), boot=boot_id(), keeper=record.pid_of(os.getpid()), launcher=None,
        created=1.5, updated=2.0, groups=2, answer=("ticket", "no"),
        roles=(RoleRecord(name="trainer", kind="trainer", replicas=(replica,)),),
    )  # fmt: skip
    return dataclasses.replace(usual, **changes)


def test_there_and_back(tmp_path: Path) -> None:
    made = job(tmp_path)
    record.write(made)
    assert record.read(tmp_path) == made
    assert made.restarts == 3
    assert [p.name for p in tmp_path.iterdir()] == ["job.json"]


def test_fields_of_a_newer_version_are_left_out(tmp_path: Path) -> None:
    record.write(job(tmp_path))
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "moon": "full"}))
    assert record.read(tmp_path) == job(tmp_path)


def test_an_earlier_job_of_the_same_run_directory(tmp_path: Path) -> None:
    (tmp_path / "keeper").mkdir()
    record.write(job(tmp_path, app_id="first", state="FAILED"))
    os.replace(record.path_of(tmp_path), record.path_of(tmp_path, "first"))
    record.write(job(tmp_path, app_id="second"))
    assert record.read(tmp_path, "second").app_id == record.read(tmp_path).app_id == "second"
    assert record.read(tmp_path, "first").state == "FAILED"
    with pytest.raises(UnreadableError) as e:
        record.read(tmp_path, "third")
    assert e.value.missing


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: whole[: len(whole) // 2],
        lambda whole: b"",
        lambda whole: b"\xff\xfe\x00",
        lambda whole: b"[" * 100_000,
        lambda whole: b"[1]",
        lambda whole: whole.replace(b'"format": 1', b'"format": 99'),
        lambda whole: whole.replace(b"RUNNING", b"ASLEEP", 1),
        lambda whole: whole.replace(b'"groups": 2', b'"groups": true'),
        lambda whole: whole.replace(b'"ticks"', b'"tocks"'),
        lambda whole: os.mkfifo,
        lambda whole: os.mkdir,
    ],
)
def test_what_cant_be_read_is_a_sentence(tmp_path: Path, change: Any) -> None:
    record.write(job(tmp_path))
    path = tmp_path / "job.json"
    whole = path.read_bytes()
    made = change(whole)
    assert made != whole
    path.unlink()
    if isinstance(made, bytes):
        path.write_bytes(made)
    else:
        made(path)
    with pytest.raises(UnreadableError) as e:
        record.read(tmp_path)
    assert str(tmp_path / "job.json") in str(e.value)
    assert not e.value.missing


def test_nothing_is_there(tmp_path: Path) -> None:
    for run_dir in (tmp_path, tmp_path / "no", Path(__file__)):
        with pytest.raises(UnreadableError, match="no job of local_ft") as e:
            record.read(run_dir)
        assert e.value.missing


def test_whether_its_keeper_lives(tmp_path: Path) -> None:
    """That of one that was killed: tests/process/launch/keeper/test_keeper.py."""
    made = job(tmp_path)
    for change, state in (
        ({}, "RUNNING"),
        ({"keeper": Pid(pid=os.getpid(), ticks=1)}, "FAILED"),  # another one has its number
        ({"boot": "another"}, "FAILED"),  # the host was started anew
        ({"keeper": Pid(pid=os.getpid(), ticks=1), "host": "elsewhere"}, "RUNNING"),  # of which nothing can be known
        ({"keeper": Pid(pid=os.getpid(), ticks=1), "state": "SUCCEEDED"}, "SUCCEEDED"),
    ):
        record.write(dataclasses.replace(made, **change))
        assert record.read(tmp_path).state == state
