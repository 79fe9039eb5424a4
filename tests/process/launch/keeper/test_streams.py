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
    to_the_end(streams, "import sys; print('out'); print('err', file=sys.stderr); print('unfinished', end='')")
    streams.say("the keeper")
    to_the_end(streams, "print('again')")
    streams.close()
    out, err, both = read(tmp_path / "made")
    assert out == "out\nunfinishedagain\n"
    assert err == "err\nthe keeper\n"
    assert sorted(both.splitlines()) == sorted(["out", "err", "unfinished", "the keeper", "again"])
    assert both.splitlines()[-2:] == ["the keeper", "again"]
    assert streams.last_line == "err"


def test_an_unfinished_line_of_a_process_that_is_slow_to_end_is_a_line(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    to_the_end(streams, "import time; print('unfinished', end='', flush=True); time.sleep(0.5)")
    streams.say("the keeper")
    streams.close()
    assert read(tmp_path)[2].splitlines() == ["unfinished", "the keeper"]


def test_much_output_and_lines_that_never_end(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    to_the_end(streams, "print('x' * 3_000_000, end='')")
    to_the_end(streams, "for k in range(20000): print(k)")
    streams.close()
    out, _, both = read(tmp_path)
    assert out == "x" * 3_000_000 + "".join(f"{k}\n" for k in range(20000))
    assert both.replace("\n", "") == out.replace("\n", "")


def test_a_progress_bar_is_seen_before_its_line_ends(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    process = start("import time; print('50 %', end='', flush=True); time.sleep(60)")
    streams.attach(process)
    wait_for(lambda: streams.pump() or "50 %" in read(tmp_path)[2], 20, "the bar")
    process.kill()
    process.wait()
    streams.close()
