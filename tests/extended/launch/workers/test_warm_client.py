"""Warm attempts, real: processes that are forked from the pre-imported one, killed, and compared with cold ones."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.launch.driven import Driven, drive  # noqa: F401
from tests.process.launch.workers.test_warm_client import (
    COLD,
    WITNESS,
    Starter,
    _forkers,
    by_default,  # noqa: F401  # the fixture
    end,
    events,
    found,
    kill,
    wait_until_warm,
    warm,
)
from tests.util import scaled, wait_for
from torchft_x.launch.process import process_tree

pytestmark = [pytest.mark.timeout(300)]


def test_what_a_script_raises_is_told_as_of_a_cold_one_and_the_same_twice_is_the_end(drive: Starter) -> None:
    run = warm(drive, COLD)
    wait_until_warm(run)
    found(run, 0)
    (run.folder / "script.py").write_text("import sys\n\ndef f():\n    raise ValueError('bad luck')\n\nf()\n")
    kill(run, 0)
    assert run.wait(60) == 1
    starts = events(run, "start")
    assert [e["warm"] for e in starts] == [False, True, True]
    script = run.folder / "script.py"
    head = f'Traceback (most recent call last):\n  File "{script}", line 6, in <module>\n    f()\n'
    trace = f"{head}  File \"{script}\", line 4, in f\n    raise ValueError('bad luck')\nValueError: bad luck\n"
    words = re.sub(r" +[\^~]+\n", "", run.err.read_text())  # 3.11 and later point at the place
    assert words.count(trace) == 2, words
    (done,) = run.reports("done")
    assert done["sentence"].endswith("twice before it made a Manager: ValueError: bad luck")


def test_the_loss_of_the_parent_costs_warmth_only(drive: Starter) -> None:
    """A worker that it had forked is still asked to end when the supervisor is stopped."""
    leaves = "signal.signal(15, lambda *_: (print('asked', flush=True), sys.exit(0)))\nsignal.pause()"
    run = warm(drive, COLD.replace("signal.pause()", leaves), grace=scaled(20.0))
    wait_until_warm(run)
    found(run, 0)
    (parent,) = _forkers(run)
    os.kill(parent, signal.SIGKILL)
    wait_for(lambda: len(events(run, "warm")) >= 3, 90, "another parent")  # ready, gone, ready
    assert events(run, "warm")[1]["reason"] == "the warm parent is gone"
    assert not events(run, "exit")
    kill(run, 0)
    found(run, 1)
    (parent,) = {*_forkers(run)} - {found(run, 1)["pid"]}
    os.kill(parent, signal.SIGKILL)
    wait_for(lambda: len(events(run, "warm")) >= 5, 90, "a third parent")
    assert len(events(run, "exit")) == 1  # the attempt it has forked goes on
    assert [e["warm"] for e in events(run, "start")] == [False, True]
    end(run)
    assert "asked" in run.out.read_text()
    assert run.reports("exited")[-1]["code"] != -9


def test_exit_codes(drive: Starter) -> None:
    text = """
import atexit, json, os, signal, sys
atexit.register(lambda: print("at exit", __name__, flush=True))
print("up", os.getpid(), flush=True)
attempt = json.loads(os.environ["TORCHFT_X_ATTEMPT"])["number"]
if attempt == 0:
    signal.pause()
sys.exit({1: "sentence", 2: 3, 3: 0}[attempt])
"""
    run = warm(drive, text)
    wait_until_warm(run)
    os.kill(run.worker(), signal.SIGKILL)
    assert run.wait(60) == 0
    assert [e["warm"] for e in events(run, "start")] == [False, True, True, True]
    assert [e["code"] for e in events(run, "exit")] == [-signal.SIGKILL, 1, 3, 0]
    assert run.out.read_text().count("at exit __main__\n") == 3
    assert "sentence\n" in run.err.read_text()


def test_a_parent_that_does_not_answer_is_ended_and_the_attempt_is_cold(drive: Starter) -> None:
    run = warm(drive, COLD)
    wait_until_warm(run)
    (parent,) = _forkers(run)
    os.kill(parent, signal.SIGSTOP)
    kill(run, 0)
    found(run, 1)
    wait_for(lambda: len(events(run, "start")) == 2, what="the event of the start")
    assert events(run, "start")[1]["reason"] == "the warm parent did not answer within 10 s"
    assert not process_tree.is_alive(parent)
    wait_for(lambda: len(events(run, "warm")) >= 2, 90, "another parent")
    kill(run, 1)
    found(run, 2)
    wait_for(lambda: len(events(run, "start")) == 3, what="the event of the next start")
    assert events(run, "start")[2]["warm"]
    end(run)


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """A function that has the warm parent import a module with this text."""

    def write(text: str) -> None:
        (tmp_path / "user_module.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
        monkeypatch.setenv("TORCHFT_X_WARM_IMPORTS", "user_module")

    return write


def test_what_only_restarts_need_is_imported_while_the_first_attempt_runs(
    drive: Starter, imports: Callable[[str], None], tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    imports(f"with open({str(marks)!r}, 'a') as f: print('imported', file=f)\n")
    run = warm(drive, WITNESS, warm_after=1e9)
    found(run, 0)
    assert not marks.exists()
    assert not events(run, "warm")
    end(run)
    run = warm(drive, WITNESS)
    wait_until_warm(run)
    kill(run, 0)
    found(run, 1)
    assert marks.read_text() == "imported\n"
    end(run)


def test_a_parent_with_threads_is_not_forked(drive: Starter, imports: Callable[[str], None]) -> None:
    imports("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n")
    run = warm(drive, WITNESS)
    wait_until_warm(run)
    kill(run, 0)
    found(run, 1)
    sentence = "the warm parent has 2 threads after its imports"
    assert [e.get("reason") for e in events(run, "start")][1] == sentence
    assert f"group 1 is started cold: {sentence}" in run.err.read_text()
    end(run)


def test_each_forked_worker_of_each_attempt_draws_its_own_random_numbers(drive: Starter) -> None:
    run = warm(drive, WITNESS, workers=2)
    wait_until_warm(run)
    drawn = [found(run, 0, rank) for rank in (0, 1)]
    kill(run, 0)
    drawn += [found(run, 1, rank) for rank in (0, 1)]
    assert [e["warm"] for e in events(run, "start")][:1] == [True]
    assert len({one["chance"] for one in drawn}) == len({one["seed"] for one in drawn}) == 4
    end(run)
