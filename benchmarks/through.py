"""Quorum changes as groups meet them: through each library's own group servers, a process for each group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.libraries import ROOT, Library
from benchmarks.processes import GaveUp, Worker

ASKER = str(ROOT / "benchmarks" / "asker.py")
_SETTLED = 0.05  # seconds until the lighthouse has heard all others
_TRIES = 20  # until all are in one quorum: the first to come may be alone in its own


class Askers:
    """Of one library, for one lighthouse. Raises `GaveUp`."""

    def __init__(self, library: Library, bind: str, number: int, folder: Path) -> None:
        self._number = number
        self.workers: list[Worker] = []
        try:
            for i in range(number):
                name = f"through_{i}"
                command = [library.python, ASKER, "--library", library.module, "--lighthouse", f"http://{bind}"]
                log = folder / f"{library.key}-{name}.log"
                self.workers.append(Worker([*command, "--group", name], library.environment(), log, folder))
            for worker in self.workers:
                worker.answer()
            for _ in range(_TRIES):
                if self._round(self.workers, 0.0) is not None:
                    return
            raise GaveUp(f"{number} groups of {library.module} are never in one quorum")
        except BaseException:
            self.close()
            raise

    def change(self, *, burst: bool) -> float:
        """Seconds of one quorum change: see `groups.change`."""
        pause = 0.0 if burst else _SETTLED
        for _ in range(_TRIES):
            seconds = self._round(self.workers, pause)
            if seconds is not None:
                return seconds
        raise GaveUp(f"{self._number} groups fall apart")

    def _round(self, workers: Sequence[Worker], pause: float) -> float | None:
        """None: they were not all in one quorum."""
        for worker in workers[:-1]:
            worker.ask("ask")
        time.sleep(pause)
        workers[-1].ask("ask")
        answers = [worker.answer() for worker in workers]
        if any(members != self._number for _, _, members in answers):
            return None
        begin = answers[-1][0] if pause else min(began for began, _, _ in answers)
        return float(max(ended for _, ended, _ in answers) - begin)

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
