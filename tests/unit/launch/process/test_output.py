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
    """A relay whose stdout and stderr are files, and its workers' ends of the pipes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._fds = [os.open(folder / name, os.O_CREAT | os.O_RDWR) for name in ("1", "2")]
        self._pipes: dict[str, int] = {}
        real = os.write
        to = {1: self._fds[0], 2: self._fds[1]}
        monkeypatch.setattr("torchft_x.launch.process.output.os.write", lambda fd, data: real(to.get(fd, fd), data))

    def relay(self, workers: int, labels: dict[str, str] | None = None) -> Relay:
        return Relay(self.folder, workers, self.folder / "log", labels=labels)

    def say(self, pipe: str, text: bytes) -> None:
        """Write to a worker's pipe, such as "0.err"."""
        if pipe not in self._pipes:
            self._pipes[pipe] = os.open(self.folder / pipe, os.O_WRONLY)
        os.writev(self._pipes[pipe], [text])

    def read(self, name: str) -> str:
        return (self.folder / name).read_bytes().decode()

    def close(self) -> None:
        self._monkeypatch.undo()
        for fd in [*self._fds, *self._pipes.values()]:
            os.close(fd)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    stage = Stage(tmp_path, monkeypatch)
    yield stage
    stage.close()


def test_one_worker_comes_through_as_it_is(stage: Stage) -> None:
    relay = stage.relay(1)
    stage.say("0.out", b"10%\r")
    relay.pump()
    assert stage.read("1") == "10%\r"
    stage.say("0.out", b"20%\n")
    stage.say("0.err", b"oops\n")
    relay.pump()
    assert (stage.read("1"), stage.read("2")) == ("10%\r20%\n", "oops\n")
    relay.close()
    assert "oops" in stage.read("log")


def test_a_line_and_its_end_written_apart_stay_together(stage: Stage) -> None:
    relay = stage.relay(1)
    stage.say("0.out", b"step 1")
    relay.pump()
    assert stage.read("1") == ""
    stage.say("0.out", b"\n")
    relay.pump()
    assert stage.read("1") == "step 1\n"
    stage.say("0.out", b"a prompt without an end: ")

    def shown() -> bool:
        relay.pump()
        return stage.read("1") == "step 1\na prompt without an end: "

    wait_for(shown, 5, "the unfinished line")
    relay.close()


def test_lines_of_several_workers_carry_the_rank_and_stay_whole(stage: Stage) -> None:
    """But for events: their lines stay JSON."""
    relay = stage.relay(2)
    stage.say("0.out", b"a")
    stage.say("1.out", b"x\ny")
    relay.pump()
    stage.say("0.out", b'b\n{"t":1.0,"event":"commit"}\n')
    relay.pump()
    relay.close()
    assert stage.read("1") == '[rank 1] x\n[rank 0] ab\n{"t":1.0,"event":"commit"}\n[rank 1] y\n'


def test_the_last_words_are_kept(stage: Stage) -> None:
    relay = stage.relay(1)
    for i in range(50):
        stage.say("0.err", b"line %d\n\n" % i)
    stage.say("0.err", b"the ")
    relay.pump()
    stage.say("0.err", b"end\xff")
    relay.close()
    words = relay.tail(0)
    assert words[-2:] == ("line 49", "the end\ufffd")
    assert len(words) <= 20
    assert relay.tail(7) == ()


def test_the_supervisors_line_starts_a_line(stage: Stage) -> None:
    relay = stage.relay(1)
    stage.say("0.err", b"half")
    relay.pump()
    relay.say("group 1 died")
    relay.close()
    assert stage.read("2") == "half\ngroup 1 died\n"


def test_a_long_line_is_passed_on_in_pieces(stage: Stage) -> None:
    relay = stage.relay(2)
    for _ in range(3):
        stage.say("0.out", b"z" * 60000)
        relay.pump()
    relay.close()
    assert stage.read("1").replace("[rank 0] ", "").replace("\n", "") == "z" * 180000


def test_for_a_collector_each_line_is_an_object(stage: Stage) -> None:
    relay = stage.relay(2, {"role": "supervisor", "group": "1"})
    stage.say("0.out", b'10%\r20%\n{"loss": 0.5}\n')
    stage.say("1.err", b"un")
    relay.pump()
    assert stage.read("2") == ""
    stage.say("1.err", b"finished")
    relay.say(json.dumps({"message": "the supervisor's"}))
    relay.close()
    first, own = map(json.loads, stage.read("1").splitlines())
    said, last = map(json.loads, stage.read("2").splitlines())
    assert (first["message"], first["group"], first["rank"], first["stream"]) == ("10%\r20%", "1", 0, "stdout")
    assert own == {"loss": 0.5}
    assert said == {"message": "the supervisor's"}
    assert (last["message"], last["rank"], last["stream"]) == ("unfinished", 1, "stderr")
    assert relay.tail(1) == ("unfinished",)
    assert len(stage.read("log").splitlines()) == 4
