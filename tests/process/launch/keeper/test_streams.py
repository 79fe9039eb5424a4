"""What a real process prints, in its files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.util import wait_for
from torchft_x.launch.keeper.streams import Streams


def start(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def to_the_end(streams: Streams, code: str) -> None:
    process = start(code)
    streams.attach(process)
    wait_for(lambda: streams.pump() or not streams.fds(), 20, "the end of its output")
    process.wait()


def read(folder: Path) -> list[str]:
    return [(folder / f"{name}.log").read_text() for name in ("stdout", "stderr", "combined")]


def test_both_streams_and_one_of_both(tmp_path: Path) -> None:
    streams = Streams(tmp_path / "made")
    to_the_end(streams, "import os; os.write(1, b'out\\n'); os.write(2, b'err\\n')")
    to_the_end(streams, "print('unfinished', end='')")
    to_the_end(streams, "print('again')")
    process = start("import time; print('50 %', end=''); time.sleep(60)")
    streams.attach(process)
    wait_for(lambda: streams.pump() or "50 %" in read(tmp_path / "made")[2], 20, "a progress bar")
    streams.say("the keeper")
    process.kill()
    process.wait()
    streams.close()
    out, err, both = read(tmp_path / "made")
    assert out == "out\nunfinishedagain\n50 %"
    assert err == "err\nthe keeper\n"
    assert sorted(both.splitlines()[:2]) == ["err", "out"]
    assert both.splitlines()[2:] == ["unfinished", "again", "50 %", "the keeper"]
    assert streams.last_line == "err"


def test_much_output_and_lines_that_never_end(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    to_the_end(streams, "print('x' * 3_000_000, end='')")
    to_the_end(streams, "for k in range(20000): print(k)")
    streams.close()
    out, _, both = read(tmp_path)
    assert out == "x" * 3_000_000 + "".join(f"{k}\n" for k in range(20000))
    assert both.replace("\n", "") == out.replace("\n", "")
