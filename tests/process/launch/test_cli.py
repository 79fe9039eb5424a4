"""Command lines: what they refuse, and what the lighthouse role adds to its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.programs import ROOT, python
from tests.util import scaled
from torchft_x.__main__ import main

WITHOUT = """
import sys
sys.modules["torchx"] = None
from torchft_x.__main__ import main
for command in sys.argv[1:]:
    try:
        code = main([command, "--help"])
    except SystemExit as e:
        code = e.code
    if code:
        sys.exit(code)
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a plain shell."""
    for name in ("TORCHX_JOB_ID", "TORCHFT_LIGHTHOUSE", "TORCHFT_X_TOKEN", "TORCHFT_X_ADVERTISE_HOST"):
        monkeypatch.delenv(name, raising=False)


def test_what_runs_in_the_job_needs_no_torchx() -> None:
    """An image, or a machine with a card, may have PyTorch and torchft_x only."""
    commands = ["supervise", "accompany", "lighthouse", "dumps"]
    done = python("-c", WITHOUT, *commands)
    assert done.stdout.count("usage: ") == len(commands)


def with_output_to(fd: int, words: list[str], unbuffered: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command whose output goes to this descriptor."""
    return subprocess.run(
        [sys.executable, "-m", "torchft_x", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered},
        stdout=fd,
        stderr=subprocess.PIPE,
        text=True,
        timeout=scaled(60),
        check=False,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["--help"], ["dumps", "."]])
def test_a_command_that_nobody_reads_ends_without_a_traceback(
    words: list[str], unbuffered: str, tmp_path: Path
) -> None:
    """As ``| head`` does: `dumps` ended in a traceback. What was buffered must not fail at Python's exit either."""
    (tmp_path / "dumps" / "001-died-1-abc").mkdir(parents=True)
    reader, writer = os.pipe()
    os.close(reader)
    done = with_output_to(writer, words, unbuffered, tmp_path)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_the_output_is_one_sentence(unbuffered: str) -> None:
    """``torchft_x report > FILE`` ended in a traceback."""
    with open("/dev/full", "w") as full:
        done = with_output_to(full.fileno(), ["--help"], unbuffered, ROOT)
    assert done.stderr == "torchft_x: the output or a file can't be written: No space left on device.\n"
    assert done.returncode == 1


def test_a_connection_that_breaks_is_no_output_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(argv: list[str]) -> int:
        raise BrokenPipeError

    monkeypatch.setattr("torchft_x.launch.cli.dumps", broken)
    with pytest.raises(BrokenPipeError):
        main(["dumps", "."])
