"""The relay: pipes in, two streams and a log out. Its own stdout and stderr are replaced by files for the test."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.util import wait_for
from torchft_x.launch.process.output import Relay


class Stage:
    """A relay whose stdout and stderr are files."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._fds = [os.open(folder / name, os.O_CREAT | os.O_RDWR) for name in ("1", "2")]
        real = os.write
        to = {1: self._fds[0], 2: self._fds[1]}
        monkeypatch.setattr("torchft_x.launch.process.output.os.write", lambda fd, data: real(to.get(fd, fd), data))

    def relay(self, workers: int, labels: dict[str, str] | None = None) -> Relay:
        return Relay(self.folder, workers, self.folder / "log", labels=labels)

    def writer(self, rank: int, name: str) -> int:
        return os.open(self.folder / f"{rank}.{name}", os.O_WRONLY)

    def read(self, name: str) -> str:
        return (self.folder / name).read_bytes().decode()

    def close(self) -> None:
        self._monkeypatch.undo()
        for fd in self._fds:
            os.close(fd)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    stage = Stage(tmp_path, monkeypatch)
    yield stage
    stage.close()


def say(fd: int, text: bytes) -> None:
    os.writev(fd, [text])


def test_one_worker_comes_through_as_it_is(stage: Stage) -> None:
    relay = stage.relay(1)
    out, err = stage.writer(0, "out"), stage.writer(0, "err")
    say(out, b"10%\r")
    relay.pump()
    assert stage.read("1") == "10%\r"
    say(out, b"20%\n")
    say(err, b"oops\n")
    relay.pump()
    assert (stage.read("1"), stage.read("2")) == ("10%\r20%\n", "oops\n")
    os.close(out)
    os.close(err)
    relay.close()
    assert "oops" in stage.read("log")


def test_a_line_and_its_end_written_apart_stay_together(stage: Stage) -> None:
    relay = stage.relay(1)
    out = stage.writer(0, "out")
    say(out, b"step 1")
    relay.pump()
    assert stage.read("1") == ""
    say(out, b"\n")
    relay.pump()
    assert stage.read("1") == "step 1\n"
    say(out, b"a prompt without an end: ")

    def shown() -> bool:
        relay.pump()
        return stage.read("1") == "step 1\na prompt without an end: "

    wait_for(shown, 5, "the unfinished line")
    os.close(out)
    relay.close()


def test_an_event_s_line_carries_no_rank(stage: Stage) -> None:
    relay = stage.relay(2)
    zero = stage.writer(0, "out")
    say(zero, b'text\n{"t":1.0,"event":"commit"}\n')
    relay.pump()
    relay.close()
    assert stage.read("1") == '[rank 0] text\n{"t":1.0,"event":"commit"}\n'
    os.close(zero)


def test_lines_of_several_workers_carry_the_rank_and_stay_whole(stage: Stage) -> None:
    relay = stage.relay(2)
    zero, one = stage.writer(0, "out"), stage.writer(1, "out")
    say(zero, b"a")
    say(one, b"x\ny")
    relay.pump()
    say(zero, b"b\n")
    relay.pump()
    relay.close()
    assert stage.read("1") == "[rank 1] x\n[rank 0] ab\n[rank 1] y\n"
    os.close(zero)
    os.close(one)


def test_the_last_words_are_kept(stage: Stage) -> None:
    relay = stage.relay(1)
    err = stage.writer(0, "err")
    for i in range(50):
        say(err, b"line %d\n\n" % i)
    say(err, b"the ")
    relay.pump()
    say(err, b"end\xff")
    relay.close()
    os.close(err)
    words = relay.tail(0)
    assert words[-2:] == ("line 49", "the end\ufffd")
    assert len(words) <= 20
    assert relay.tail(7) == ()


def test_the_supervisors_line_starts_a_line(stage: Stage) -> None:
    relay = stage.relay(1)
    err = stage.writer(0, "err")
    say(err, b"half")
    relay.pump()
    relay.say("group 1 died")
    relay.close()
    os.close(err)
    assert stage.read("2") == "half\ngroup 1 died\n"


def test_a_long_line_is_passed_on_in_pieces(stage: Stage) -> None:
    relay = stage.relay(2)
    out = stage.writer(0, "out")
    for _ in range(3):
        say(out, b"z" * 60000)
        relay.pump()
    relay.close()
    os.close(out)
    assert stage.read("1").replace("[rank 0] ", "").replace("\n", "") == "z" * 180000


def test_for_a_collector_each_line_is_an_object(stage: Stage) -> None:
    relay = stage.relay(2, {"role": "supervisor", "group": "1"})
    out, err = stage.writer(0, "out"), stage.writer(1, "err")
    say(out, b'10%\r20%\n{"loss": 0.5}\n')
    say(err, b"un")
    relay.pump()
    assert stage.read("2") == ""
    say(err, b"finished")
    relay.say(json.dumps({"message": "the supervisor's"}))
    relay.close()
    os.close(out)
    os.close(err)
    first, own = map(json.loads, stage.read("1").splitlines())
    said, last = map(json.loads, stage.read("2").splitlines())
    assert (first["message"], first["group"], first["rank"], first["stream"]) == ("10%\r20%", "1", 0, "stdout")
    assert own == {"loss": 0.5}
    assert said == {"message": "the supervisor's"}
    assert (last["message"], last["rank"], last["stream"]) == ("unfinished", 1, "stderr")
    assert relay.tail(1) == ("unfinished",)
    assert len(stage.read("log").splitlines()) == 4
