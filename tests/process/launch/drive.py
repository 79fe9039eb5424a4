"""A supervisor with a recorder in place of the lighthouse, run as a process.

Usage: ``python -m tests.process.launch.drive FOLDER ...``

Each report is appended to FOLDER/reports.jsonl. A line "CODE SENTENCE" in the pipe FOLDER/stop is the lighthouse's
order to stop.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

from torchft_x.core.types import State
from torchft_x.errors import TorchftXError
from torchft_x.launch.process.restarts import RestartRules
from torchft_x.launch.supervisor.config import LauncherOptions, SupervisorConfig, start_warm_parent
from torchft_x.launch.supervisor.group import Supervisor
from torchft_x.launch.supervisor.locate import FoundLighthouse


class Recorder:
    """`Reports` that writes each report to a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.callbacks = SimpleNamespace()

    def start(self) -> None:
        """Listen in place of a lighthouse. The number is the variable TELL_NUMBER or, if it is empty, in the file `number`."""
        number = os.environ.get("TELL_NUMBER", "0")
        if number:
            self.callbacks.number(int(number))
        listeners = [self._listen_for_stop, self._listen_for_orders, *([] if number else [self._wait_for_number])]
        for listen in listeners:
            threading.Thread(target=listen, daemon=True).start()

    def started(self, attempt: int, attempt_token: str) -> None:
        self._write(kind="started", attempt=attempt, attempt_token=attempt_token)

    def halted(self, attempt_token: str, who: str, seconds: float) -> None:
        self._write(kind="halted", attempt_token=attempt_token, who=who, seconds=seconds)

    def exited(self, attempt: int, attempt_token: str, code: int, reason: str) -> None:
        self._write(kind="exited", attempt=attempt, attempt_token=attempt_token, code=code, reason=reason)

    def held(self, state: State) -> None:
        self._write(kind="held", step=state.step)

    def rests(self, rests: bool) -> None:
        self._write(kind="rests", rests=rests)

    def _listen_for_orders(self) -> None:
        """Call back for each line of the file `orders`: kind, attempt (`.`: none), sentence."""
        path, done = self._folder / "orders", 0
        while True:
            lines = path.read_text().splitlines() if path.exists() else []
            for line in lines[done:]:
                kind, attempt_token, sentence = line.split(" ", 2)
                self.callbacks.order(kind, attempt_token.strip("."), sentence)
            done = len(lines)
            time.sleep(0.02)

    def done(self, code: int, sentence: str) -> None:
        self._write(kind="done", code=code, sentence=sentence)

    def _listen_for_stop(self) -> None:
        with open(self._folder / "stop") as pipe:
            code, sentence = pipe.read().split(" ", 1)
        self.callbacks.stop(int(code), sentence)

    def _wait_for_number(self) -> None:
        path = self._folder / "number"
        while not path.exists():
            time.sleep(0.02)
        self.callbacks.number(int(path.read_text()))
        self._write(kind="number")

    def close(self, flush: float) -> None:
        self._write(kind="closed")

    def _write(self, **report: object) -> None:
        with open(self._folder / "reports.jsonl", "a") as f:
            f.write(json.dumps(report) + "\n")


def main() -> int:
    options = json.loads(sys.argv[2])
    folder = Path(sys.argv[1])
    os.mkfifo(folder / "stop")
    if "launcher" in options and "attempts_file" in options["launcher"]:
        options["launcher"]["attempts_file"] = Path(options["launcher"]["attempts_file"])
    rules, launcher = RestartRules(**options.pop("rules", {})), LauncherOptions(**options.pop("launcher", {}))
    config = SupervisorConfig(run_dir=folder, rules=rules, launcher=launcher, command=tuple(sys.argv[3:]), **options)

    def connect(found: FoundLighthouse) -> Recorder:
        return Recorder(folder)

    try:
        return Supervisor(config, connect, start_warm_parent(config)).run()
    except TorchftXError as e:
        print(e, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
