"""Findings from recorded folders. The Flight Recorders are those of two real gloo processes that had rebuilt their group once
and reduced three times in each; then rank 0 alone reduced five numbers (hang), or rank 1 seven (mismatch)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from torchft_x.observe.dumps import (
    KEPT,
    all_folders,
    describe,
    examine,
    headline,
    number,
    open_folder,
    parse_stacks,
    place,
    read_folder,
)

RECORDED = Path(__file__).parent / "recorded"
STACK = """Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f0000000002 (most recent call first):
  File "{inner}", line 21 in {function}
  File "/home/me/train.py", line 40 in main
"""


def put(folder: Path, group: str, recorder: str | None = None, *, function: str = "telltale", **status: Any) -> None:
    """One group of one rank."""
    configured = 0.0
    if recorder is not None:
        shutil.copy(RECORDED / recorder, folder / f"{group}-0.fr.json")
        entries = json.loads((RECORDED / recorder).read_text())["entries"]
        configured = min(e["time_created_ns"] for e in entries if e["pg_id"] == 1) / 1e9
    said = {"rank": 0, "step": 7, "phase": "running", "step_seconds": 12.5, "main_thread": "0x00007f0000000002"}
    said |= {"members": ["0:a", "1:b"], "config": 5, "configured": configured, **status}
    (folder / f"{group}-0.status.json").write_text(json.dumps(said))
    (folder / f"{group}-0.stack.txt").write_text(STACK.format(inner="/home/me/data.py", function=function))
    why(folder, group, "stalled", "no step for 12 s, the limit is 10 s")


def why(folder: Path, group: str, why: str, reason: str, **more: Any) -> None:
    (folder / f"{group}.why.json").write_text(json.dumps({"group": group, "why": why, "reason": reason, **more}))


def test_who_has_not_come_to_a_collective_is_named_with_its_place(tmp_path: Path) -> None:
    put(tmp_path, "0", "hang-0.json")
    put(tmp_path, "1", "hang-1.json", function="telltale_nap")
    first, *_ = examine(read_folder(tmp_path))
    assert first == (
        "group 0 rank 0 waits in #4 all_reduce of 5 float between the groups; group 1 rank 0 has not come to it; "
        "group 1 rank 0 is in telltale_nap (data.py:21)"
    )
    assert headline([first]).startswith("Group 0 rank 0 waits")


def test_different_sizes_of_one_collective_are_named(tmp_path: Path) -> None:
    put(tmp_path, "0", "mismatch-0.json")
    put(tmp_path, "1", "mismatch-1.json")
    first, *_ = examine(read_folder(tmp_path))
    assert first.startswith(
        "collective #4 between the groups differs: group 0 rank 0 all_reduce of 5 float; "
        "group 1 rank 0 all_reduce of 7 float."
    )


def test_collectives_of_an_earlier_group_do_not_count(tmp_path: Path) -> None:
    """Group 1 has issued nothing since the last configure; its recorder's newest group is that of the one before."""
    put(tmp_path, "0", "hang-0.json")
    put(tmp_path, "1", "mismatch-1.json", configured=4e9)
    first, *_ = examine(read_folder(tmp_path))
    assert "group 1 rank 0 has not come to it" in first


def test_a_straggler_is_named(tmp_path: Path) -> None:
    put(tmp_path, "0", "hang-1.json")
    put(tmp_path, "1", "hang-1.json")
    recorder = json.loads((tmp_path / "1-0.fr.json").read_text())
    for entry in recorder["entries"]:
        entry["time_created_ns"] += 700_000_000
    (tmp_path / "1-0.fr.json").write_text(json.dumps(recorder))
    first, *_ = examine(read_folder(tmp_path))
    assert first.startswith("group 1 rank 0 is a straggler between the groups: it comes 0.70 s after the first")


def test_a_death_is_told_with_its_error_and_last_lines(tmp_path: Path) -> None:
    put(tmp_path, "0", "hang-0.json", config=None, story=["3.0 s ago, Ask of rank 0: It asks."])
    why(tmp_path, "0", "", "")
    why(tmp_path, "1", "died", "worker 0 exited with code 1")
    (tmp_path / "1-0.error.json").write_text(json.dumps({"message": {"message": "ValueError: x", "extraInfo": {}}}))
    (tmp_path / "1-0.log.txt").write_text("one\ntwo\n")
    dump = read_folder(tmp_path)
    assert examine(dump)[0] == "group 1 died: worker 0 exited with code 1; rank 0: ValueError: x"
    assert "    two" in describe(dump)
    assert "      its group, 3.0 s ago, Ask of rank 0: It asks." in describe(dump)


def test_what_could_not_be_collected_is_said(tmp_path: Path) -> None:
    put(tmp_path, "0", "hang-1.json")
    why(
        tmp_path, "0", "stopped", "worker 0 has been stopped for 1 s", missing=["rank 0 (process 9) does not answer: x"]
    )
    found = examine(read_folder(tmp_path))
    assert found[0].startswith("group 0 stands still: worker 0 has been stopped")
    assert "group 0 rank 0 (process 9) does not answer: x" in found
    assert any(sentence.startswith("nothing was collected of group 1") for sentence in found)


@pytest.mark.parametrize("name", ["0-0.fr.json", "0-0.status.json", "0.why.json", "0-0.stack.txt", "0-0.error.json"])
@pytest.mark.parametrize("content", ["", '{"entries": [', "[1]", "null", '{"entries": [1, {}], "message": 3}'])
def test_a_torn_file_is_no_obstacle(tmp_path: Path, name: str, content: str) -> None:
    put(tmp_path, "0", "hang-0.json")
    put(tmp_path, "1", "hang-1.json")
    (tmp_path / name).write_text(content)
    describe(read_folder(tmp_path))


def test_a_place_names_the_users_function_behind_a_librarys() -> None:
    frames = parse_stacks(STACK.format(inner="/v/lib/python3.11/site-packages/torch/x.py", function="wait"))
    assert place(frames["0x00007f0000000002"]) == "wait (torch/x.py:21), called from main (train.py:40)"


def test_supervisors_meet_in_one_folder_per_event_and_the_oldest_go(tmp_path: Path) -> None:
    first, new = open_folder(tmp_path, "died", "1-abc")
    assert (first.name, new) == ("001-died-1-abc", True)
    assert open_folder(tmp_path, "stopped", "1-abc") == (first, False)
    assert open_folder(tmp_path, "stalled", "step-4/../x")[0].name == "002-stalled-step-4_.._x"
    for n in range(KEPT + 3):
        open_folder(tmp_path, "stalled", f"step-{n}")
    kept = all_folders(tmp_path)
    assert len(kept) == KEPT
    assert number(kept[-1]) == KEPT + 5
    os.utime(kept[-1], (1, 1))
    assert open_folder(tmp_path, "stalled", f"step-{KEPT + 2}")[1]  # the same step an hour later is another event
