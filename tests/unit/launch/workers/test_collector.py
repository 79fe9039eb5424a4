"""What the supervisor reads and asks, from those that lie, and the folders. Real workers: tests/process/train/introspection/test_setup.py."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.util import scaled
from torchft_x.launch.workers import probe_worker
from torchft_x.launch.workers.collector import Incident, _log_end
from torchft_x.launch.workers.probe_worker import NoAnswerError, Target
from torchft_x.observe import worker_status


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def a_liar(path: Path, *answers: bytes, pause: float = 0.0) -> socket.socket:
    """Answers each question with this, again and again."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(100)
                connection.sendall(answer[:8])
                while True:
                    connection.sendall(answer[8:])
                    if not answer[8:]:
                        break
                    time.sleep(pause)

    threading.Thread(target=serve, daemon=True).start()
    return listener


def test_an_endless_answer_is_cut_off(short: Path) -> None:
    """Slowly or quickly: neither the time nor the memory is the other side's to choose."""
    huge, large = struct.pack("<Q", 1 << 62), struct.pack("<Q", 1 << 20)
    listener = a_liar(short / "0.sock", huge + b"x", large + b"x", large[:5], pause=0.05)
    target = Target(0, os.getpid(), short)
    with pytest.raises(NoAnswerError, match="longer than 1048576 bytes"):
        probe_worker.ask(target, probe_worker.STACKS, scaled(5))
    began = time.monotonic()
    with pytest.raises(NoAnswerError, match=r"did not answer within 0\.5 s"):
        probe_worker.ask(target, probe_worker.STACKS, 0.5)
    assert time.monotonic() - began < scaled(2)
    with pytest.raises(NoAnswerError, match="ends in the middle"):
        probe_worker.ask(target, probe_worker.STACKS, scaled(5))
    listener.close()


def test_who_shows_nothing_or_nonsense_is_silent(short: Path) -> None:
    target = Target(0, os.getpid(), short)
    with pytest.raises(NoAnswerError, match="shows no status"):
        probe_worker.status(target)
    os.mkfifo(short / "0.status")  # an open that waits for somebody would wait for ever
    with pytest.raises(NoAnswerError, match="shows no status"):
        probe_worker.status(target)
    for content in (b"", bytes(100), os.urandom(worker_status.SIZE)):
        (short / "0.status").unlink()
        (short / "0.status").write_bytes(content)
        with pytest.raises(NoAnswerError, match="can't be read"):
            probe_worker.status(target)


def test_the_last_lines_are_the_ranks_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"[rank {n % 2}] line {n}\n" for n in range(300)) + "[rank 10] no\n")
    lines = _log_end(Incident("", (), log, True, tmp_path), 1).decode().splitlines()
    assert len(lines) == 50
    assert lines[-1] == "[rank 1] line 299"
    assert all(line.startswith("[rank 1] ") for line in lines)
