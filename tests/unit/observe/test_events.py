"""observe/events: lines on disk, listeners, and reading a run that goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.events import workers
from torchft_x.observe.events import EVENTS, EventLog, EventTail, incomplete, last_event, read_events
from torchft_x.observe.run import reading


def test_a_line_carries_the_common_fields_and_leaves_out_none(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "trainer", group="1", rank=0, attempt=None)
    log.bind(replica_id="1:abc")
    log.emit("commit", step=3, reason=None)
    log.close()
    (event,) = read_events(tmp_path)
    assert event.pop("t") > 1e9
    common = {"role": "trainer", "group": "1", "rank": 0, "replica_id": "1:abc", "pid": os.getpid()}
    assert event == {**common, "mono": event["mono"], "event": "commit", "step": 3}


def test_an_unknown_event_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown event 'committed'"):
        EventLog(tmp_path, "trainer").emit("committed")


def test_the_newest_event_of_a_role(tmp_path: Path) -> None:
    assert last_event(tmp_path, "lighthouse") is None
    for name, *events in (("lighthouse-1", (1, "start"), (3, "exit")), ("lighthouse-2", (2, "exit"), (4, "error"))):
        lines = [json.dumps({"t": t, "event": event}) for t, event in events]
        path = tmp_path / "events" / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(["x" * (1 << 16), *lines, '{"t": 9, "ev']))
    (tmp_path / "events" / "trainer-1.jsonl").write_text('{"t": 8, "event": "exit"}\n')
    assert last_event(tmp_path, "lighthouse") == {"t": 4, "event": "error"}
    assert last_event(tmp_path, "lighthouse", "exit") == {"t": 3, "event": "exit"}
    assert last_event(tmp_path, "lighthouse", "scale") is None


def test_the_tail_gives_each_event_once_and_waits_for_whole_lines(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "trainer", group="0")
    tail = EventTail(tmp_path)
    assert tail.new() == []
    log.emit("commit", step=1)
    assert [e["step"] for e in tail.new()] == [1]
    (path,) = (tmp_path / "events").iterdir()
    line = json.dumps({"t": 5.0, "event": "commit", "step": 2})
    with path.open("a") as f:
        f.write(line[:10])
    assert tail.new() == []
    with path.open("a") as f:
        f.write(line[10:] + "\n")
    assert [e["step"] for e in tail.new()] == [2]
    log.close()


def test_read_events_merges_files_by_time_and_skips_what_is_no_event(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"t": 3, "event": "commit"}\n{"t": 1, "event": "start"}\n{"t": 9, "ev')
    (folder / "b.jsonl").write_text('{"t": 2, "event": "drop"}\nno json\n[1]\n')
    assert [e["event"] for e in read_events(tmp_path)] == ["start", "drop", "commit"]


def test_every_event_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "events.md").read_text()
    missing = [name for name in sorted(EVENTS) if f"| `{name}` |" not in text]
    assert not missing


def test_a_log_on_a_full_disk_is_marked_as_cut(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = EventLog(tmp_path, "trainer", group="0")
    log.emit("commit", step=1)
    assert incomplete(tmp_path) == []
    os.close(log._fd)  # type: ignore[arg-type]
    log._fd = os.open("/dev/full", os.O_WRONLY)
    log.emit("commit", step=2)
    log.emit("commit", step=3)  # into nothing
    (path,) = (tmp_path / "events").glob("*.jsonl")
    assert incomplete(tmp_path) == [str(path)]
    assert [e["step"] for e in read_events(tmp_path)] == [1]
    assert f"no longer written to {path}: [Errno 28] No space left" in capfd.readouterr().err


def test_odd_lines_are_no_events(tmp_path: Path) -> None:
    """S11: of a log that anybody may have written to."""
    folder = tmp_path / "events"
    folder.mkdir()
    fine = {"t": 1.0, "event": "commit", "role": "trainer", "group": "0", "step": 3, "participants": 1}
    odd: list[object] = [
        {**fine, name: value}
        for name in ("t", "step", "participants", "attempt", "pid", "rank", "quorum")
        for value in ("x", [], {}, True, 10**400, float("nan"), float("inf"))
    ]
    odd += [{k: v for k, v in fine.items() if k != "t"}, {**fine, "t": None}, {**fine, "event": []}, [fine], 7, None]
    odd += [{**fine, "members": 5}, {**fine, "lost": [5]}]
    lines = [json.dumps(x) for x in odd] + ["[" * 100_000, json.dumps({**fine, "event": "joined"}), json.dumps(fine)]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    events = read_events(tmp_path)
    assert [e["event"] for e in events] == ["joined", "commit"]
    assert workers(events) == []  # it doesn't say which process


def test_a_log_that_has_become_large_goes_on_in_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchft_x.observe.events.PART_BYTES", 2000)
    log = EventLog(tmp_path, "trainer", group="0", rank=0)
    tail = EventTail(tmp_path)
    seen = []
    for step in range(100):
        log.emit("commit", step=step, quorum=1, participants=1)
        if step % 7 == 0:
            seen += tail.new()
    log.close()
    files = sorted((tmp_path / "events").iterdir())
    assert len(files) > 5
    assert max(f.stat().st_size for f in files) < 2200
    assert [e["step"] for e in seen + tail.new()] == list(range(100))  # also for who reads while it is written
    assert [e["step"] for e in read_events(tmp_path)] == list(range(100))
    heard = reading.read(tmp_path)
    (one,) = heard.logs  # one process, however many files
    assert list(one.commits.step) == list(range(100))
    assert heard.events == 100


def test_the_first_part_and_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchft_x.observe.events.PART_BYTES", 1000)
    monkeypatch.setattr("torchft_x.observe.events.PARTS", 4)
    log = EventLog(tmp_path, "trainer")
    for step in range(100):
        log.emit("commit", step=step, quorum=1, participants=1)
    log.close()
    steps = [e["step"] for e in read_events(tmp_path)]
    assert len(list((tmp_path / "events").iterdir())) == 4
    assert (steps[0], steps[-1]) == (0, 99)
    assert steps[-10:] == list(range(90, 100))
    assert len(steps) < 100
