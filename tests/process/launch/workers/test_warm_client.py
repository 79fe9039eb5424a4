"""Warm attempts, real: processes that are forked from the pre-imported one, killed, and compared with cold ones."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.launch.driven import Driven, drive  # noqa: F401
from tests.util import wait_for
from torchft_x import env
from torchft_x.launch.process import process_tree
from torchft_x.observe.events import read_events

pytestmark = [pytest.mark.timeout(300)]

# Variables that torch and torchft_x set when they are imported, in a cold worker a little later.
BY_IMPORTS = {"GRPC_VERBOSITY", "TORCHINDUCTOR_CACHE_DIR"}

# Tells what it finds, then waits to be killed.
WITNESS = """
import json, os, random, signal, sys, uuid
import torch
import numpy, ctypes

openblas = ctypes.CDLL(next(line.split()[-1] for line in open("/proc/self/maps") if "openblas" in line))
fds = {}
for fd in os.listdir("/proc/self/fd"):
    try:
        fds[fd] = os.readlink("/proc/self/fd/" + fd).split("/")[-1]
    except OSError:
        pass  # the listing's own
found = {
    "environ": dict(os.environ),
    "argv": sys.argv,
    "path": sys.path,
    "flags": str(sys.flags),
    "cwd": os.getcwd(),
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "fds": fds,
    "main": [sys.modules["__main__"].__dict__ is globals(), __name__, __file__, __spec__, __package__, __doc__],
    "names": sorted(name for name in globals() if name.startswith("__")),
    "loader": type(__loader__).__name__,
    "signals": [str(signal.getsignal(n)) for n in range(1, 32)],
    "streams": [str(sys.stdout.write_through), str(sys.stderr.write_through), sys.stdout.encoding],
    "threads": [torch.get_num_threads(), openblas.scipy_openblas_get_num_threads64_()],
    "seed": torch.initial_seed(),
    "chance": random.random(),
    "pid": os.getpid(),
    "resource": __import__("resource").getrlimit(7),
    "mask": str(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
}
folder = os.environ["TORCHFT_X_RUN_DIR"]
name = folder + f"/found-{json.loads(os.environ['TORCHFT_X_ATTEMPT'])['number']}-" + os.environ["RANK"]
with open(name + ".part", "w") as f:
    json.dump(found, f)
os.rename(name + ".part", name + ".json")
signal.pause()
"""

# The same, which does before its imports what only a process of its own has time for.
COLD = WITNESS.replace("import torch", "os.environ\nimport torch", 1)

Starter = Callable[..., Driven]


@pytest.fixture(autouse=True)
def by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users have it; the other tests go without."""
    monkeypatch.delenv(env.WARM, raising=False)


def events(run: Driven, name: str) -> list[dict]:
    return [e for e in read_events(run.folder) if e["event"] == name]


def wait_until_warm(run: Driven, times: int = 1) -> None:
    wait_for(lambda: len(events(run, "warm")) >= times or run.process.poll() is not None, 90, "the warm parent")
    assert run.process.poll() is None, run.err.read_text()


def found(run: Driven, attempt: int, rank: int = 0) -> dict:
    path = run.folder / f"found-{attempt}-{rank}.json"
    wait_for(lambda: path.exists() or run.process.poll() is not None, 60, path.name)
    return json.loads(path.read_text())


def kill(run: Driven, attempt: int, rank: int = 0) -> None:
    os.kill(found(run, attempt, rank)["pid"], signal.SIGKILL)


def warm(drive: Starter, text: str, **options: object) -> Driven:
    return drive(text, **{"warm_after": 0.0, "rules": {"max_restarts": 50}} | options)


def end(run: Driven) -> None:
    """Stop it; nothing of it may be left."""
    below = process_tree.descendants(run.process.pid)
    assert below
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    wait_for(lambda: not any(map(process_tree.is_alive, below)), 5, "the end of all processes")


OF_THE_ATTEMPT = {"TORCHFT_X_ATTEMPT", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}


def test_a_warm_worker_finds_what_a_cold_one_finds_and_ends_with_the_supervisor(
    drive: Starter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Variable by variable, and all else that a script can see of how it was started."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    run, other = warm(drive, COLD, workers=2), warm(drive, WITNESS, workers=2)
    wait_until_warm(run)
    kill(run, 0)
    for at, attempt in ((run, 1), (other, 0)):
        for rank in (0, 1):
            compare(found(run, 0, rank), as_if(run, at, found(at, attempt, rank)), attempt)
    # a forked worker may be quicker than the supervisor's own word
    wait_for(lambda: len(events(run, "start")) + len(events(other, "start")) == 3, what="the event of the start")
    assert [e.get("warm") for e in events(run, "start")] == [False, True]
    assert events(run, "start")[0]["reason"].startswith("the script's line 3 may set what torch")
    assert [e.get("warm") for e in events(other, "start")] == [True]
    # The parent, the workers, their store: all of it, by the kernel.
    below = process_tree.descendants(run.process.pid)
    assert len(below) == 4
    run.process.kill()
    wait_for(lambda: not any(map(process_tree.is_alive, below)), 10, "the end of all processes")


def as_if(run: Driven, other: Driven, there: dict) -> dict:
    """What was found there, as if it had been in the folder of that run, at its lighthouse, below its supervisor."""
    text = json.dumps(there).replace(str(other.folder), str(run.folder))
    lighthouses = [(driven.folder / "lighthouse").read_text().strip() for driven in (other, run)]
    return json.loads(text.replace(*lighthouses))


def compare(cold: dict, warm: dict, attempt: int) -> None:
    cold = dict(cold)
    before, after = cold.pop("environ"), warm.pop("environ")
    assert set(before) <= set(after)
    assert set(after) - set(before) <= BY_IMPORTS
    differ = {n for n in before if before[n] != after[n]}
    assert differ == OF_THE_ATTEMPT - ({"TORCHELASTIC_RUN_ID"} if attempt == 0 else set())
    assert after["TORCHELASTIC_RUN_ID"] == before["TORCHELASTIC_RUN_ID"].replace("attempt-0", f"attempt-{attempt}")
    assert after["TORCHELASTIC_ERROR_FILE"].endswith(f"attempt_0/{after['RANK']}/error.json")
    assert Path(after["TORCHELASTIC_ERROR_FILE"]).parent.is_dir()
    for own in ("pid", "chance", "seed"):
        assert cold.pop(own) != warm.pop(own)
    assert cold == warm


def test_a_first_attempt_whose_parent_is_lost_is_cold(drive: Starter) -> None:
    run = warm(drive, WITNESS)
    wait_for(lambda: _forkers(run), what="the warm parent")
    for parent in _forkers(run):
        os.kill(parent, signal.SIGKILL)
    found(run, 0)
    wait_for(lambda: events(run, "start"), what="the event of the start")
    (start,) = events(run, "start")
    log = run.folder / "logs" / "group-1.warm.log"
    assert (start["warm"], start["reason"]) == (False, f"the warm parent ended during its imports, see {log}")
    end(run)


def test_who_is_stopped_while_a_first_attempt_waits_for_its_imports_ends_at_once(drive: Starter) -> None:
    run = warm(drive, WITNESS)
    wait_for(lambda: _forkers(run), what="the warm parent")
    (parent,) = _forkers(run)
    wait_for((run.folder / "events").exists, what="the supervisor, which watches signals then")
    os.kill(parent, signal.SIGSTOP)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    wait_for(lambda: not process_tree.is_alive(parent), 5, "its end")


def _forkers(run: Driven) -> list[int]:
    """The warm parent, and the warm workers and store: forked from it, they show its command line."""
    return [p for p in process_tree.descendants(run.process.pid) if b"warm_server.py" in _look(p, "cmdline")]


def _look(pid: int, name: str) -> bytes:
    """A file of /proc; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
