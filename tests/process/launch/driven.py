"""A supervisor as a process, with a toy script and a recorder in place of the lighthouse."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.util import scaled, wait_for

SLEEPER = "import os, time; print('up', os.getpid(), flush=True); time.sleep(1000)"


class Driven:
    """A supervisor process, with its files and reports."""

    def __init__(self, folder: Path, text: str, *, script: str = "", served: bool = True, **options: object) -> None:
        self.folder = folder
        (folder / "script.py").write_text(text)
        self._server = socket.create_server(("127.0.0.1", 0))  # stand-in for the lighthouse, which accepts connections
        if served:
            (folder / "lighthouse").write_text(f"http://127.0.0.1:{self._server.getsockname()[1]}\n")
        self.port = self._server.getsockname()[1]
        given = {"group": "1", "groups": 2, "warm_after": 1e9, "grace": scaled(1.0), "find_timeout": scaled(5.0)}
        given |= options
        command = [sys.executable, "-m", "tests.process.launch.drive", str(folder), json.dumps(given)]
        self.out = folder / "out.txt"
        self.err = folder / "err.txt"
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                [*command, script or str(folder / "script.py"), "--flag", "$x"],
                stdout=out,
                stderr=err,
                env={**os.environ, "TORCHFT_X_TOKEN": "secret"},
                # A shell's background jobs ignore SIGINT, and all children of the tests would inherit that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def reports(self, kind: str | None = None) -> list[dict]:
        path = self.folder / "reports.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        reports = [json.loads(line) for line in lines]
        return [r for r in reports if kind in (None, r["kind"])]

    def wait(self, seconds: float = 15.0) -> int:
        return self.process.wait(scaled(seconds))

    def worker(self) -> int:
        """Wait for the worker of the newest attempt to print its pid, and return that."""
        attempt = len(self.reports("exited"))
        wait_for(lambda: len(self.reports("started")) > attempt, what="the attempt's start")
        wait_for(lambda: len(self._words()) > attempt, what="the worker's word")
        return int(self._words()[-1])

    def _words(self) -> list[str]:
        """Return the pids that workers have printed, in whole lines."""
        return re.findall(r"^up (\d+)\n", self.out.read_text(), re.MULTILINE)

    def close(self) -> None:
        self._server.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def drive(tmp_path: Path) -> Iterator:
    made: list[Driven] = []

    def start(text: str, **options) -> Driven:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Driven(folder, text, **options))
        return made[-1]

    yield start
    for driven in made:
        driven.close()
