"""The supervisor as a process, with toy scripts and a recorder instead of the lighthouse. Most need no torch."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.process.launch.driven import SLEEPER, drive  # noqa: F401
from tests.util import wait_for
from torchft_x.launch.process import process_tree
from torchft_x.launch.workers import attempts_file
from torchft_x.launch.workers.attempts_file import AttemptsReport
from torchft_x.observe.events import read_events


def test_a_clean_end(drive) -> None:
    run = drive("import sys; print('out'); print('err', sys.argv[1:], file=sys.stderr)")
    assert run.wait() == 0
    assert run.out.read_text() == "out\n"
    said, warned = run.err.read_text().splitlines()
    assert said == "err ['--flag', '$x']"
    assert warned.startswith("group 1 has ended well, but its script made no torchft_x.Manager: each group has trained")
    kinds = [r["kind"] for r in run.reports()]
    assert kinds == ["started", "exited", "done", "closed"]
    assert run.reports("exited")[0]["code"] == 0
    assert run.reports("done")[0] == {"kind": "done", "code": 0, "sentence": ""}
    log = (run.folder / "logs" / "group-1-attempt-0.log").read_text()
    assert sorted(log.splitlines()) == ["err ['--flag', '$x']", "out"]
    assert [e["event"] for e in read_events(run.folder)] == ["start", "exit"]


def test_what_an_attempt_leaves_in_its_slots_the_next_one_finds(drive) -> None:
    text = """if 1:
        import json, os
        attempt = json.loads(os.environ["TORCHFT_X_ATTEMPT"])
        limit, slots = attempt["memory_slots"].split(";")
        first, second = slots.split(",")
        pid, fd, tag = first.split("/")
        with open(f"/proc/{pid}/fd/{fd}", "r+b") as slot:
            print(int(limit) > 1 << 20, slot.read(), flush=True)
            slot.write(b"left")
        if attempt["number"] == 0:
            os.kill(os.getpid(), 9)
    """
    run = drive(text, memory=0.2)
    assert run.wait() == 0
    assert run.out.read_text().splitlines() == ["True b''", "True b'left'"]


def test_its_attempts_go_on_from_the_number_that_the_lighthouse_tells(drive, monkeypatch) -> None:
    monkeypatch.setenv("TELL_NUMBER", "4")
    run = drive(
        "import json, os, sys; sys.exit(json.loads(os.environ['TORCHFT_X_ATTEMPT'])['number'] < 6)",
        rules={"max_restarts": 2},
    )
    assert run.wait() == 0
    assert [r["attempt"] for r in run.reports("started")] == [4, 5, 6]
    assert "restart 1 of 2" in run.err.read_text()


def test_no_attempt_begins_without_a_session(drive, monkeypatch, tmp_path: Path) -> None:
    """A supervisor that replaces a killed one while the lighthouse is away first reports what died with that one."""
    monkeypatch.setenv("TELL_NUMBER", "")
    attempts_file.write(AttemptsReport(number=6, token="a"), tmp_path / "attempts")
    launcher = {"attempts_file": str(tmp_path / "attempts")}
    run = drive("", find_timeout=0.1, launcher=launcher)
    assert run.wait() == 1
    assert [(r["kind"], r.get("code")) for r in run.reports()] == [("exited", -9), ("done", 1), ("closed", None)]
    assert "No session with the lighthouse at http://127.0.0.1:" in run.reports("done")[0]["sentence"]

    run = drive("", find_timeout=1000.0, launcher=launcher)
    wait_for(lambda: run.reports("exited"), what="the report of the end")
    part = run.folder / "number.part"
    part.write_text("9")
    part.rename(run.folder / "number")
    assert run.wait() == 0
    kinds = [(r["kind"], r.get("attempt")) for r in run.reports() if r["kind"] != "number"]  # noted by another thread
    assert kinds[:3] == [("exited", 6), ("started", 9), ("exited", 9)]


def test_a_mistake_of_the_script_stays_one(drive, tmp_path: Path) -> None:
    attempts_file.write(AttemptsReport(number=6, token="a", code=1), tmp_path / "attempts")
    run = drive("import sys; sys.exit(2)", launcher={"attempts_file": str(tmp_path / "attempts")})
    assert run.wait() == 1
    assert [r["attempt"] for r in run.reports("started")] == [7]
    assert [(r["attempt"], r["code"]) for r in run.reports("exited")] == [(6, 1), (7, 2)]


def test_a_killed_worker_is_restarted_at_once_and_the_cause_is_named(drive) -> None:
    run = drive(SLEEPER)
    first = run.worker()
    os.kill(first, signal.SIGKILL)
    (exited,) = wait_for(lambda: run.reports("exited"), what="the report")
    assert exited["code"] == -9
    assert exited["reason"] == "worker 0 killed by SIGKILL"
    assert run.worker() != first
    tokens = [r["attempt_token"] for r in run.reports("started")]
    assert len(set(tokens)) == 2
    assert exited["attempt_token"] == tokens[0]
    line, _ = run.err.read_text().splitlines()  # and that it is started cold
    assert line.startswith("group 1 died: worker 0 killed by SIGKILL after ")
    assert line.endswith("s; restart 1 of 10 in 0 s")


def test_what_comes_again_at_every_start_is_not_tried_again(drive) -> None:
    error = "NameError: name 'undefined_name' is not defined"
    run = drive("print(undefined_name)")
    assert run.wait() == 1
    assert len(run.reports("started")) == 1
    (done,) = run.reports("done")
    assert done["sentence"].endswith(f"before it made a Manager: {error}")
    assert run.err.read_text().count(error) == 2  # the end of its traceback, and why the group stops
    assert not (run.folder / "dumps").exists()


def test_where_a_scheduler_starts_again_what_fails_a_group_that_is_over_exits_as_told(drive) -> None:
    run = drive(SLEEPER, rules={"max_restarts": 0}, launcher={"no_restart_code": 0})
    os.kill(run.worker(), signal.SIGKILL)
    assert run.wait() == 0
    assert run.reports("done")[0]["code"] == 1  # the lighthouse hears what it was


@pytest.mark.parametrize(("no_restart_code", "exit_code", "while_it_runs"), [(0, 0, False), (None, 143, True)])
def test_a_group_that_the_lighthouse_stops_with_any_code_is_over(
    drive, monkeypatch, no_restart_code: int | None, exit_code: int, while_it_runs: bool
) -> None:
    """As the other nodes of a group are when one gives up, or its supervisor got a signal."""
    monkeypatch.setenv("TELL_NUMBER", "0" if while_it_runs else "")
    run = drive(SLEEPER, find_timeout=1000.0, launcher={"no_restart_code": no_restart_code})
    if while_it_runs:
        run.worker()
    wait_for(lambda: (run.folder / "stop").exists(), what="the start")
    with open(run.folder / "stop", "w") as pipe:
        pipe.write("143 node 0 stopped: stopped by SIGTERM")
    assert run.wait() == exit_code
    assert run.reports("done")[0]["code"] == 143  # the lighthouse hears what it was


def test_where_a_scheduler_starts_again_what_fails_a_signal_is_not_the_groups_end(drive) -> None:
    run = drive(SLEEPER, launcher={"no_restart_code": 0})
    run.worker()
    run.process.terminate()
    assert run.wait() == 143
    assert [r["kind"] for r in run.reports()] == ["started", "exited", "closed"]


def test_a_missing_script_is_one_sentence(drive) -> None:
    run = drive("", script="nowhere/train.py")
    assert run.wait() == 2
    assert "nowhere/train.py does not exist" in run.reports("done")[0]["sentence"]
    assert len(run.err.read_text().splitlines()) == 1
    assert run.reports("started") == []


def test_ctrl_c_stops_the_group(drive) -> None:
    """SIGTERM: the two tests that follow."""
    script = "import signal, sys; signal.signal(15, lambda *a: (print('leaving', flush=True), sys.exit(0)))\n" + SLEEPER
    run = drive(script)
    worker = run.worker()
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 128 + signal.SIGINT
    assert "leaving" in run.out.read_text()
    assert not process_tree.is_alive(worker)
    assert run.reports("done")[0]["code"] == 128 + signal.SIGINT


def test_a_worker_that_ignores_the_signal_is_killed_after_the_grace(drive) -> None:
    run = drive("import signal; signal.signal(15, signal.SIG_IGN)\n" + SLEEPER, grace=0.3)
    worker = run.worker()
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143
    assert run.reports("done")[0]["code"] == 143
    assert not process_tree.is_alive(worker)


def test_ctrl_c_ends_the_grace_and_a_second_sigterm_does_not(drive) -> None:
    run = drive("import signal; signal.signal(15, lambda *a: print('ignored', flush=True))\n" + SLEEPER, grace=1000.0)
    worker = run.worker()
    run.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "ignored" in run.out.read_text(), what="the first signal")
    for _ in range(5):  # Slurm sends two, its step daemon's and srun's
        run.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    assert process_tree.is_alive(worker)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 143
    assert not process_tree.is_alive(worker)


def test_the_lighthouse_tells_to_stop(drive) -> None:
    run = drive(SLEEPER)
    worker = run.worker()
    with open(run.folder / "stop", "w") as pipe:
        pipe.write("0 the job is finished")
    assert run.wait() == 0
    assert not process_tree.is_alive(worker)
    assert run.err.read_text() == "group 1 stops: the job is finished\n"
    assert run.reports("done")[0] == {"kind": "done", "code": 0, "sentence": "the job is finished"}


def test_it_says_which_attempt_runs_and_the_next_supervisor_that_it_died_with_this_one(drive, tmp_path: Path) -> None:
    reported = tmp_path / "attempts"
    first = drive(SLEEPER, launcher={"attempts_file": str(reported)})
    first.worker()
    started = first.reports("started")[0]
    report = attempts_file.read(reported)
    assert (report.number, report.token, report.code) == (started["attempt"], started["attempt_token"], None)
    first.process.kill()
    first.process.wait()

    second = drive("", launcher={"attempts_file": str(reported)})
    assert second.wait() == 0
    assert [(r["kind"], r.get("attempt_token") == started["attempt_token"]) for r in second.reports()[:2]] == [
        ("exited", True), ("started", False),
    ]  # fmt: skip
    assert second.reports("exited")[0]["code"] == -signal.SIGKILL
    report = attempts_file.read(reported)
    (again,) = second.reports("started")
    assert again["attempt"] == started["attempt"] + 1
    assert (report.number, report.token, report.code) == (again["attempt"], again["attempt_token"], 0)


def test_what_the_worker_left_running_ends_with_its_attempt(drive) -> None:
    daemon = "import subprocess, sys; p = subprocess.Popen(['sleep', '1000'], start_new_session=True); print(p.pid)"
    run = drive(daemon)
    assert run.wait() == 0
    assert not process_tree.is_alive(int(run.out.read_text()))


def test_without_a_lighthouse_it_gives_up_in_time(drive) -> None:
    run = drive(SLEEPER, served=False, find_timeout=0.2)
    assert run.wait() == 2
    (line,) = run.err.read_text().splitlines()
    assert line.startswith("Gave up after ")
    assert f"(no address in {run.folder / 'lighthouse'} yet)" in line


def test_stopped_while_it_waits_for_the_lighthouse(drive) -> None:
    run = drive(SLEEPER, served=False, find_timeout=1000.0)
    wait_for(lambda: (run.folder / "events").exists(), what="the start")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143


def test_gloos_abort_is_explained(drive) -> None:
    words = "terminate called after throwing gloo::EnforceNotMet ... op.preamble.length <= op.nbytes. 8 vs 4"
    run = drive(f"import os, sys; print({words!r}, file=sys.stderr); os.abort()", rules={"max_restarts": 0})
    assert run.wait() == 1
    assert "layout mismatch" in run.reports("exited")[0]["reason"]


def test_a_step_committed_is_no_crash_loop(drive) -> None:
    script = """if True:
        import os, pathlib, sys
        events = pathlib.Path(os.environ["TORCHFT_X_RUN_DIR"], "events", f"trainer-1-0-{os.getpid()}.jsonl")
        events.write_text('{"event":"commit","step":1}\\n')
        sys.exit(3)
    """
    run = drive(script, rules={"max_restarts": 4, "loop": 2})
    assert run.wait() == 1
    assert run.reports("done")[0]["sentence"].endswith("(4 restarts within the last hour)")


def test_a_store_that_can_not_start_is_quoted(drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libnothing.so is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = drive(SLEEPER, workers=2, rules={"max_restarts": 0})
    assert run.wait() == 1
    assert "the process with the group's store ended with code 1" in run.reports("exited")[0]["reason"]
    assert "ImportError: libnothing.so is missing" in run.reports("done")[0]["sentence"]
    assert "    Traceback (most recent call last):" in run.err.read_text()  # it went to the store's own log only


def test_the_store_starts_with_the_first_caller(drive) -> None:
    script = """if True:
        import os, socket, sys, time
        print("up", os.getpid(), flush=True)
        sys.stdin.read()
        while not os.path.exists(os.environ["TORCHFT_X_RUN_DIR"] + "/call"):
            time.sleep(0.01)
        caller = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
        time.sleep(1000)
    """
    run = drive(script)
    below = [run.worker()]
    assert process_tree.descendants(run.process.pid) == below
    (run.folder / "call").touch()
    wait_for(lambda: len(process_tree.descendants(run.process.pid)) == 2, what="the process with the store")
