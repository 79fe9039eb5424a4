"""Jobs run by a real keeper. The roles' programs are small scripts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.util import scaled, wait_for
from torchft_x.errors import TorchftXError
from torchft_x.launch.keeper import plan, record
from torchft_x.launch.keeper.plan import REPLICA, JobPlan, Process, RolePlan
from torchft_x.launch.keeper.record import JobRecord, ReplicaRecord
from torchft_x.launch.process import process_tree

STAYS = "import time; print('here', flush=True); time.sleep(600)"


STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + STAYS


# It prints the pid of a child in a session of its own. On SIGTERM it kills the child and ends.
PARENT = (
    "import os, signal, subprocess, sys, time; "
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True); "
    "signal.signal(signal.SIGTERM, lambda *_: (child.kill(), sys.exit(143))); "
    "print(child.pid, flush=True); time.sleep(600)"
)


def role(name: str, code: str, *, kind: str = "", replicas: int = 1, **more: Any) -> RolePlan:
    process = Process(args=(sys.executable, "-c", code, "--groups", "?", "--", REPLICA), env={"WHO": REPLICA})
    template = process if kind == "trainer" else None
    return RolePlan(name=name, replicas=(process,) * replicas, kind=kind, template=template, **more)


class Kept:
    """A job and its keeper, with access to the job's record and output."""

    def __init__(self, run_dir: Path, *roles: RolePlan, app_id: str = "app", launcher: int | None = None) -> None:
        self.run_dir = run_dir
        self.app_id = app_id
        self.logs = run_dir / "replicas"
        (run_dir / "keeper").mkdir(parents=True, exist_ok=True)
        plan.write(
            JobPlan(
                app_id=app_id, session="s", run_dir=str(run_dir), log_dir=str(self.logs), roles=roles, launcher=launcher
            )
        )
        words = [sys.executable, "-m", "torchft_x", "keep-job", str(run_dir), app_id]
        self.words = words if launcher is None or launcher == os.getpid() else []
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, start_new_session=True) if self.words else None

    def know(self) -> JobRecord | None:
        try:
            return record.read(self.run_dir, self.app_id)
        except TorchftXError:
            return None

    def until(self, state: str) -> JobRecord:
        def there() -> JobRecord | None:
            now = self.know()
            return now if now is not None and now.state == state else None

        return wait_for(there, 20, f"the job to be {state}, which is {self.know()}")

    def replica(self, number: int = 0, role: int = 0) -> ReplicaRecord:
        now = self.know()
        return next(r for r in now.roles[role].replicas if r.id == number)

    def pid(self, number: int = 0) -> int:
        process = self.replica(number).process
        return 0 if process is None else process.pid

    def printed(self, name: str, number: int = 0) -> str:
        path = self.logs / name / str(number) / "combined.log"
        return path.read_text() if path.exists() else ""

    def child(self, name: str, number: int = 0) -> int:
        """Return the pid that the newest `PARENT` has printed."""
        return int(wait_for(lambda: [w for w in self.printed(name, number).split() if w.isdigit()], 20, "a pid")[-1])

    def end(self) -> int:
        code = self.process.wait(scaled(30))
        self.process.stderr.close()
        return code


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Any]:
    made: list[Kept] = []

    def start(*roles: RolePlan, run_dir: Path = tmp_path / "run", **options: Any) -> Kept:
        made.append(Kept(run_dir, *roles, **options))
        return made[-1]

    yield start
    for job in made:
        if job.process is not None and job.process.returncode is None:
            process_tree.send([*process_tree.descendants(job.process.pid), job.process.pid], signal.SIGKILL)
            job.end()
