"""Quorum changes through each library's own group servers, with a process for each group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.libraries import ROOT, Library
from benchmarks.processes import ANSWER, GaveUp, Worker

ASKER = str(ROOT / "benchmarks" / "asker.py")
_SETTLED = 0.05  # seconds until the lighthouse has received the other requests
_TRIES = 20  # rounds that may end with more than one quorum
_POLL = 0.01  # seconds


class Askers:
    """Processes of asker.py, one per group, of one library and for one lighthouse. All methods may raise `GaveUp`."""

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
            self._gather()
        except BaseException:
            self.close()
            raise

    def change(self, *, burst: bool) -> float:
        """Return the seconds of one quorum change, as `groups.change` defines them."""
        pause = 0.0 if burst else _SETTLED
        for _ in range(_TRIES):
            seconds = self._round(self.workers, pause)
            if seconds is not None:
                return seconds
            self._gather()
        raise GaveUp(f"{self._number} groups fall apart")

    def _gather(self) -> None:
        """Ask until all groups are in one quorum.

        The first group may get a quorum of its own, and the others then wait for it: a group whose quorum is too small
        asks again at once.
        """
        asking, deadline = list(self.workers), time.monotonic() + ANSWER
        for worker in asking:
            worker.ask("ask")
        while asking:
            if time.monotonic() > deadline:
                raise GaveUp(f"{self._number} groups were never in one quorum within {ANSWER:.0f} s")
            for worker in list(asking):
                if worker.has_answered(_POLL):
                    if worker.answer()[2] == self._number:
                        asking.remove(worker)
                    else:
                        worker.ask("ask")

    def _round(self, workers: Sequence[Worker], pause: float) -> float | None:
        """Return the seconds of one round, or None if not all groups got one quorum."""
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
