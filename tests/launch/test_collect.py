"""Asking real worker processes over their sockets, and the folders; without a job around them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.util import scaled, wait_for
from torchft_x.launch import asking
from torchft_x.launch.asking import Silent, Target
from torchft_x.launch.collect import Scene, _log_end
from torchft_x.launch.dump_folders import KEPT, all_folders, number, open_folder

WORKER = """
import sys, time
from torch._C._distributed_c10d import _WorkerServer
server = _WorkerServer(sys.argv[1])
def telltale():
    while True: time.sleep(0.05)
telltale()
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """pytest's own folders are too long for a socket's path."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_a_worker_is_asked_and_a_stopped_one_is_described(short: Path) -> None:
    path = short / "0.sock"
    process = subprocess.Popen([sys.executable, "-c", WORKER, str(path)], stderr=subprocess.DEVNULL)
    target = Target(0, process.pid, path)
    try:
        wait_for(path.exists, 60, "the worker's socket")
        assert wait_for(lambda: b"in telltale" in asking.ask(target, asking.STACKS, scaled(5)), 20)
        assert b'"pg_config"' in asking.ask(target, asking.RECORDER, scaled(5))
        with pytest.raises(Silent, match="torchft_x: it answers 404"):  # of a process without our Manager
            asking.ask(target, asking.STATUS, scaled(5))
        os.kill(process.pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(Silent, match=r"did not answer within 0\.3 s"):
            asking.ask(target, asking.STACKS, 0.3)
        assert time.monotonic() - began < scaled(2)
        wait_for(lambda: asking.why_silent(process.pid) == "it is stopped (a signal or a debugger)")
        assert f"thread {process.pid} (" in asking.kernel_view(process.pid)
    finally:
        process.kill()
        process.wait()
    assert asking.why_silent(process.pid) == "it is dead"
    with pytest.raises(Silent, match="its socket fails"):
        asking.ask(target, asking.STACKS, 1.0)


def test_an_endless_answer_is_cut_off(short: Path) -> None:
    """Slowly or quickly: neither the time nor the memory is the other side's to choose."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(short / "s"))
    listener.listen()

    def serve() -> None:
        for pause in (0.0, 0.05):
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                try:
                    while True:
                        connection.sendall(b"x" * (1 << 14 if pause == 0 else 1))
                        time.sleep(pause)
                except OSError:
                    continue

    threading.Thread(target=serve, daemon=True).start()
    target = Target(0, os.getpid(), short / "s")
    with pytest.raises(Silent, match="longer than 65536 bytes"):
        asking.ask(target, asking.STATUS, scaled(5))
    with pytest.raises(Silent, match="did not answer within"):
        asking.ask(target, asking.STATUS, 0.5)
    listener.close()


def test_supervisors_meet_in_one_folder_per_event_and_the_oldest_go(tmp_path: Path) -> None:
    first, new = open_folder(tmp_path, "died", "1-abc")
    assert (first.name, new) == ("001-died-1-abc", True)
    assert open_folder(tmp_path, "lost", "1-abc") == (first, False)
    assert open_folder(tmp_path, "stalled", "step-4/../x")[0].name == "002-stalled-step-4_.._x"
    for n in range(KEPT + 3):
        open_folder(tmp_path, "stalled", f"step-{n}")
    kept = all_folders(tmp_path)
    assert len(kept) == KEPT
    assert number(kept[-1]) == KEPT + 5
    os.utime(kept[-1], (1, 1))
    assert open_folder(tmp_path, "stalled", f"step-{KEPT + 2}")[1]  # the same step an hour later is another event


def test_the_last_lines_are_the_ranks_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"[rank {n % 2}] line {n}\n" for n in range(300)) + "[rank 10] no\n")
    lines = _log_end(Scene("", (), log, True, tmp_path), 1).decode().splitlines()
    assert len(lines) == 50
    assert lines[-1] == "[rank 1] line 299"
    assert all(line.startswith("[rank 1] ") for line in lines)
