"""What a process shows and answers, from outside: while it runs, hangs, is stopped, ends and is dead."""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.util import scaled, wait_for
from torchft_x.launch.workers import probe_worker
from torchft_x.launch.workers.probe_worker import RECORDER, STACKS, NoAnswerError, Target, View

COMMAND = [sys.executable, "-m", "tests.process.train.watched_worker"]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:  # short, as a socket's path must be
        found = Path(path, "attempt")  # beside nothing else: in /tmp are folders of supervisors that were killed
        found.mkdir()
        yield found


@contextlib.contextmanager
def worker(folder: Path, how: str) -> Iterator[tuple[Target, View]]:
    process = subprocess.Popen([*COMMAND, str(folder), "0", how])
    target = Target(0, process.pid, folder)

    def shown() -> View | None:
        assert process.poll() is None, "the worker has ended"
        with contextlib.suppress(NoAnswerError):
            probe_worker.status(target)
            return View(target)
        return None

    try:
        view = wait_for(shown, 60, "the worker's status")
        assert view is not None
        yield target, view
        view.close()
    finally:
        process.kill()
        process.wait()


def test_no_status_is_torn_while_it_is_written_as_quickly_as_can_be(folder: Path) -> None:
    with worker(folder, "count") as (_, view):
        said: list[dict[str, Any]] = []

        def hundred() -> bool:
            with contextlib.suppress(
                NoAnswerError
            ):  # a worker writes four times a step; this one leaves no time to look twice
                said.append(view.read())
            return len({s["step"] for s in said}) > 100

        wait_for(hundred, 30, "a hundred steps")
    assert all(s["step"] == s["quorum"] == s["participants"] == s["commits"] for s in said)
    steps = [s["step"] for s in said]
    assert steps == sorted(steps)
    assert (said[0]["replica_id"], said[0]["attempt"], said[0]["timeout"]) == ("7:attempt", 3, 60.0)


def test_a_stopped_and_a_killed_one_are_still_read(folder: Path) -> None:
    with worker(folder, "count") as (target, view):
        os.kill(target.pid, signal.SIGSTOP)
        wait_for(lambda: not probe_worker.goes_on(target), 10, "it is stopped")
        stopped = view.read()
        assert probe_worker.status(target)["step"] == stopped["step"]
        with pytest.raises(NoAnswerError, match="it can't answer"):  # it isn't even tried
            probe_worker.ask(target, STACKS, scaled(5))
        os.kill(target.pid, signal.SIGKILL)
        wait_for(lambda: probe_worker.why_silent(target.pid) == "it is dead", 10, "it is dead")
        assert view.read()["step"] == stopped["step"]
        with pytest.raises(NoAnswerError, match="shows no status"):
            probe_worker.status(target)


def test_who_sleeps_with_pythons_lock_shows_its_status_and_its_stacks(folder: Path) -> None:
    with worker(folder, "sleep") as (target, view):
        with pytest.raises(NoAnswerError, match="did not answer within"):
            wait_for(lambda: probe_worker.ask(target, STACKS, 0.3) and False, 20)  # until it has come to its sleep
        said = view.read()
        assert said["phase"] == "idle"
        for _ in range(2):
            stacks = wait_for(lambda: probe_worker.stacks_by_signal(target, said), 20, "stacks").decode()
            assert "in telltale_sleep" in stacks
            assert stacks.count("Thread " + said["main_thread"]) == 1
        assert probe_worker.goes_on(target)


def test_a_process_that_has_begun_to_end_takes_no_questions(folder: Path) -> None:
    with worker(folder, "leave") as (target, view):
        wait_for(lambda: view.read()["leaving"], 20, "it leaves")
        wait_for(lambda: not (folder / "0.sock").exists(), 20, "it has no socket")
        with pytest.raises(NoAnswerError, match="takes no questions"):
            probe_worker.ask(target, STACKS, scaled(5))
        threads = Path(f"/proc/{target.pid}/task")
        wait_for(lambda: str(view.read()["answers"]) not in os.listdir(threads), 20, "its thread has ended")
        assert probe_worker.stacks_by_signal(target, view.read()) == b""
        tgkill_default_is_harmless(target)


def test_a_forked_child_speaks_for_itself_only(folder: Path) -> None:
    with worker(folder, "fork") as (target, view):
        steps = {0}
        wait_for(lambda: steps.add(view.read()["step"]) or 5 in steps, 20, "the child has ended")
        assert steps <= {0, 5}
        assert not view.read()["leaving"]
        assert b"in telltale_wait" in wait_for(lambda: probe_worker.ask(target, STACKS, scaled(5)), 20)


def tgkill_default_is_harmless(target: Target) -> None:
    os.kill(target.pid, signal.SIGURG)
    with pytest.raises(AssertionError):
        wait_for(lambda: not probe_worker.goes_on(target), 0.05)


@pytest.mark.parametrize(
    ("how", "times"), [("exits", 15), pytest.param("exits-with-torch", 6, marks=pytest.mark.extended)]
)
def test_no_exit_is_changed_by_questions(folder: Path, how: str, times: int) -> None:
    """So many processes end while they are asked without a pause, a third of them with each code."""
    process = subprocess.Popen([*COMMAND, str(folder), str(times), how], stdout=subprocess.PIPE, text=True)
    answered = {STACKS: 0, RECORDER: 0}

    def ask(word: str) -> None:
        while process.poll() is None:
            try:
                rank, pid = map(int, (folder / "now").read_text().split())
                probe_worker.ask(Target(rank, pid, folder), word, 2.0)
                answered[word] += 1
            except (NoAnswerError, OSError, ValueError):
                time.sleep(0.0002)

    words = [STACKS, STACKS, *([RECORDER] if how == "exits-with-torch" else [])]
    askers = [threading.Thread(target=ask, args=(word,), daemon=True) for word in words]
    for asker in askers:
        asker.start()
    try:
        out, _ = process.communicate(timeout=scaled(3.0 * times + 60))
    finally:
        process.kill()
        process.wait()
    for asker in askers:
        asker.join(scaled(10))
    assert all(answered[word] > times / 4 for word in words), f"hardly anybody was asked: {answered}"
    assert ast.literal_eval(out) == {0: times // 3, 7: times // 3, 1: times // 3}


def test_its_main_thread_does_not_come_when_that_is_asked_for(folder: Path) -> None:
    with worker(folder, "count") as (target, view):
        assert probe_worker.find(target.pid, folder.parent) is None  # its folder is no supervisor's
        for word in ("hang x", "hang -1", "hang nan"):
            assert probe_worker.ask(target, word, scaled(5)) == b"0"
        assert probe_worker.ask(target, "hang 1.5", scaled(5)) == b"1"

        def stands() -> bool:
            with contextlib.suppress(NoAnswerError):  # while it goes on, it may leave no time to look twice
                before = view.read()["step"]
                time.sleep(0.05)
                return bool(view.read()["step"] == before)
            return False

        wait_for(stands, 1, "it stands still")
        assert b"stand_still" in probe_worker.ask(target, STACKS, scaled(5))  # its other threads run
        wait_for(lambda: not stands(), 10, "it goes on")


def test_a_worker_is_found_while_other_folders_come_and_go(folder: Path) -> None:
    attempt = folder / f"{probe_worker.SCRATCH}ours" / "attempt"
    attempt.mkdir(parents=True)
    (attempt / "3.stacks").symlink_to(f"/proc/{os.getpid()}/fd/1")
    done = threading.Event()

    def others() -> None:
        while not done.is_set():
            for number in range(20):
                (folder / f"{probe_worker.SCRATCH}{number}").mkdir()
            for number in range(20):
                (folder / f"{probe_worker.SCRATCH}{number}").rmdir()

    thread = threading.Thread(target=others)
    thread.start()
    try:
        for _ in range(200):
            assert probe_worker.find(os.getpid(), folder) == Target(3, os.getpid(), attempt)
    finally:
        done.set()
        thread.join()
