"""Kill, drain and resume at a real supervisor with toy scripts: who is ended how, and what is started again."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.process.launch.driven import SLEEPER, Driven, drive
from tests.util import wait_for
from torchft_x.launch.process import process_tree
from torchft_x.observe.events import read_events

__all__ = ["drive"]  # a fixture

LEAVES = """if 1:
    import os, signal, sys, time
    def leave(*_):
        print("leaves in good order", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, leave)
    print("up", os.getpid(), flush=True)
    time.sleep(1000)
"""


def order(run: Driven, kind: str, token: str = ".") -> None:
    with open(run.folder / "orders", "a") as f:
        f.write(f"{kind} {token} {kind}ed by request\n")


def newest_attempt(run: Driven) -> str:
    return str(run.reports("started")[-1]["attempt_token"])


def test_a_kill_ends_an_attempt_and_costs_no_restart(drive: Callable[..., Driven]) -> None:
    run = drive(SLEEPER, rules={"max_restarts": 0})
    first = run.worker()
    order(run, "kill", "another-attempt")
    order(run, "kill", newest_attempt(run))
    wait_for(lambda: run.reports("exited"), what="its end")
    assert not process_tree.is_alive(first)
    assert run.worker() != first
    ended = run.reports("exited")[0]
    assert (ended["code"], ended["reason"]) == (-9, "killed by request")
    restart = next(e for e in read_events(run.folder) if e["event"] == "restart")
    assert (restart["attempt"], restart["reason"]) == (1, "killed by request")
    assert "group 1 was killed by request after" in run.err.read_text()
    assert not (run.folder / "dumps").exists()  # nothing has to be explained


def test_drained_it_leaves_in_good_order_and_rests_until_it_is_resumed_or_stopped(drive: Callable[..., Driven]) -> None:
    run = drive(LEAVES, rules={"max_restarts": 0})
    run.worker()
    order(run, "drain")
    wait_for(lambda: run.reports("rests"), what="its rest")
    assert "leaves in good order" in run.out.read_text()
    ended = run.reports("exited")[0]
    assert (ended["code"], ended["reason"]) == (143, "drained by request")
    assert run.reports("rests")[0]["rests"] is True
    assert len(run.reports("started")) == 1
    order(run, "resume")
    run.worker()
    assert [r["rests"] for r in run.reports("rests")] == [True, False]
    assert re.findall(r"group 1 (rests|is resumed)", run.err.read_text()) == ["rests", "is resumed"]
    order(run, "drain")
    wait_for(lambda: len(run.reports("rests")) == 3, what="its second rest")
    with open(run.folder / "stop", "w") as pipe:
        pipe.write("0 the job is finished")
    assert run.wait() == 0
    assert run.reports("done")[0]["code"] == 0


def test_who_does_not_leave_is_killed_in_the_end(drive: Callable[..., Driven]) -> None:
    deaf = SLEEPER.replace("print", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print", 1)
    run = drive(deaf, drain_grace=0.3)
    run.worker()
    order(run, "drain")
    wait_for(lambda: run.reports("rests"), what="its rest")
    assert run.reports("exited")[0]["reason"] == "drained by request"


def test_a_stop_during_a_drain_has_its_own_grace(drive: Callable[..., Driven]) -> None:
    deaf = SLEEPER.replace("print", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print", 1)
    run = drive(deaf, grace=0.3)
    run.worker()
    order(run, "drain")
    wait_for(lambda: "asked to leave" in run.err.read_text(), what="the order")
    with open(run.folder / "stop", "w") as pipe:
        pipe.write("1 the job has failed")
    assert run.wait() == 1
    assert run.reports("rests") == []
