"""Events on stdout, and out of what was collected of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from torchft_x import env
from torchft_x.observe.events import BEGIN, EventLog, read_events
from torchft_x.observe.run.collected import events_in, write_run

COMMIT = '{"t":10.5,"mono":1.0,"pid":7,"role":"trainer","group":"0","rank":0,"event":"commit","step":1}'


def _printed(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return capfd.readouterr().out.splitlines()


def test_each_event_is_a_line_on_stdout_with_and_without_a_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(env.EVENTS, "stdout")
    for run_dir in (None, tmp_path):
        log = EventLog(run_dir, "trainer", group="1")
        log.emit("commit", step=3)
        log.close()
        log.emit("commit", step=4)
        (line,) = _printed(capfd)
        assert line.startswith(BEGIN)
        assert json.loads(line)["step"] == 3
    assert read_events(tmp_path) == [json.loads(line)]


def test_nothing_is_printed_unless_it_is_asked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    EventLog(tmp_path, "trainer").emit("leave")
    assert _printed(capfd) == []


def test_a_stdout_that_nobody_reads_ends_the_printing_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(env.EVENTS, "stdout")

    def refused(fd: int, data: bytes) -> int:
        if fd == 1:
            raise BrokenPipeError
        return write(fd, data)

    write = os.write
    monkeypatch.setattr(os, "write", refused)
    log = EventLog(tmp_path, "trainer")
    log.emit("joined")
    log.emit("leave")
    log.close()
    assert [e["event"] for e in read_events(tmp_path)] == ["joined", "leave"]


@pytest.mark.parametrize(
    "line",
    [
        COMMIT,
        f"[rank 3] {COMMIT}",
        f"2026-11-25T20:00:00.0Z stdout F {COMMIT}",
        f"loss {{0.3}} {COMMIT}",
        json.dumps({"log": f"{COMMIT}\n", "stream": "stdout"}),
        json.dumps({"kubernetes": {"pod_name": "a"}, "message": f"[rank 3] {COMMIT}"}),
    ],
)
def test_an_event_is_found_in_what_collectors_make_of_its_line(line: str) -> None:
    assert list(events_in([line])) == [json.loads(COMMIT)]


def test_what_is_no_event_is_left_out() -> None:
    lines = [
        "", "text", "{", '{"t":', "[" * 5000, '{"t":1.0}', '{"t":"now","event":"commit"}', '{"t":1.0,"event":"said"}',
        '{"message":"{\\"t\\":1.0}"}', '{"log":{"t":1.0,"event":"commit"}}', f"{COMMIT[:-1]}", "\0\ud800",
    ]  # fmt: skip
    assert list(events_in(lines)) == []


def test_a_run_is_made_of_them_in_order_of_time_and_each_once(tmp_path: Path) -> None:
    later = COMMIT.replace("10.5", "11.5").replace('"step":1', '"step":2')
    events = [("pod-b", e) for e in events_in([later, COMMIT, later])]
    events += [("pod/a", e) for e in events_in([COMMIT])]
    assert write_run(events, tmp_path / "run") == 3
    assert len(list((tmp_path / "run" / "events").glob("*.jsonl"))) == 2
    assert [e["step"] for e in read_events(tmp_path / "run")] == [1, 1, 2]
