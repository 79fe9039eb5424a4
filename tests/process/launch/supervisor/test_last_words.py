"""What whoever starts a lighthouse again must know of its end, where exit codes can't say it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.started import TORCHFT_X, Started
from tests.util import wait_for


@contextmanager
def lighthouse(folder: Path, words: Path, *flags: str, wait: float) -> Iterator[Started]:
    command = [*TORCHFT_X, "lighthouse", "--min_replicas", "1", "--bind", "127.0.0.1:0", "--job_groups", "0"]
    command += ["--run_dir", str(folder), "--http_bind", "off", "--last_words", str(words), *flags]
    command += ["--no_restart_code", "0", "--replaced_within", str(wait)]
    child = Started(command, words.with_name("log"))
    try:
        yield child
    finally:
        child.close()


def test_a_job_that_has_failed_is_over_and_says_why(tmp_path: Path) -> None:
    words = tmp_path / "words"
    with lighthouse(tmp_path / "run", words, wait=0.2) as child:
        assert child.wait() == 0
    assert words.read_text().startswith("failed: ")


def test_one_that_is_told_to_stop_is_not_over(tmp_path: Path) -> None:
    words = tmp_path / "words"
    with lighthouse(tmp_path / "run", words, wait=600) as child:
        wait_for((tmp_path / "run/lighthouse").exists, 20, "its address")
        child.process.send_signal(signal.SIGTERM)
        assert child.wait() == 128 + signal.SIGTERM
    assert not words.exists()


def test_flags_that_can_not_be_used_are_the_end_too(tmp_path: Path) -> None:
    words = tmp_path / "words"
    with lighthouse(tmp_path / "run", words, "--join_timeout_ms", "0", wait=600) as child:
        assert child.wait() == 0
    assert words.read_text() == "failed: the lighthouse ended with code 2; its log says why."
