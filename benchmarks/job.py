"""One job of one library: a lighthouse and some groups as real processes, and their trainers' records."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from benchmarks.libraries import TRAINER, Library
from benchmarks.processes import Child, GaveUp, kill_marked, listens, wait_for
from benchmarks.record import AttemptRecord, Records
from tests.util import free_port
from torchft_x import env
from torchft_x.observe.events import read_events

START = 120.0  # seconds all groups may need to train together; cold imports on a busy machine take up to 20
SETTLED = 30  # shared commits after which a job counts as under way


class Job:
    """A running job, as a context manager that leaves no process and no file behind.

    Args:
        launched: run each group under the library's own launcher, which restarts it when it dies. Otherwise the
            trainer is started directly and stays dead.
        trainer: further arguments of trainer.py.
        ranks: processes of each group; several only if launched.
    """

    def __init__(
        self, library: Library, groups: int, *, launched: bool = False, trainer: tuple[str, ...] = (), ranks: int = 1
    ) -> None:
        self.library = library
        self.names = [str(g) for g in range(groups)]
        self.launched = launched
        self.ranks = ranks
        self.folder = Path(tempfile.mkdtemp(prefix=f"bench-{library.key}-"))
        self.records = Records(self.folder)
        self._trainer = [TRAINER, "--library", library.module, "--records", str(self.folder), *trainer]
        self._bind = f"127.0.0.1:{free_port()}"
        self._started: list[Child] = []  # all processes, in the order of their start
        self._groups: dict[str, Child] = {}  # newest process of each group
        self.lighthouse: Child | None = None

    def __enter__(self) -> Job:
        try:
            self.start_lighthouse()
            for name in self.names:
                self.start(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for child in reversed(self._started):  # launchers before the trainers that they would restart
            child.kill()
        kill_marked(str(self.folder))  # torchrun puts its workers into sessions of their own
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- processes --------------------------------------------------------------------------------------------------

    def _run(self, command: list[str], environ: dict[str, str], name: str) -> Child:
        child = Child(command, environ, self.folder / f"{name}.log", self.folder)
        self._started.append(child)
        return child

    def start_lighthouse(self) -> None:
        self.lighthouse = self._run(self.library.lighthouse(self._bind), self.library.environment(), "lighthouse")
        started = self.lighthouse

        def serves() -> bool:
            if not started.alive:
                raise GaveUp(f"the lighthouse ended at once:\n{started.last_words()}")
            return listens(self._bind)

        wait_for(serves, START, "the lighthouse listens")

    def start(self, group: str, *extra: str) -> Child:
        """Start a group, or restart it. With `extra` arguments the process does not count as the group's."""
        environ = self.library.environment(
            group, NUM_REPLICA_GROUPS=str(len(self.names)), **{env.LIGHTHOUSE: f"http://{self._bind}"}
        )
        script = [*self._trainer, *extra]
        if self.launched:
            command = self.library.launcher(group, len(self.names), self.folder / "run", script, self.ranks)
        else:
            command = [self.library.python, *script]
            environ |= {env.ATTEMPT: str(env.AttemptEnv(number=sum(x.group == group for x in self.records.update())))}
        child = self._run(command, environ, f"group-{group}")
        if not extra:
            self._groups[group] = child
        return child

    def kill(self, group: str, number: int = signal.SIGKILL) -> float:
        """Signal a group's trainer, not its launcher, and return the monotonic time of the signal."""
        attempt = self.attempt(group)
        t = time.monotonic()
        os.kill(attempt.pid, number)
        return t

    def gone(self, group: str) -> bool:
        """Return whether the group's launcher, or without one its trainer, has ended."""
        return not self._groups[group].alive

    def last_words(self, group: str) -> str:
        return self._groups[group].last_words()

    # --- what happened ----------------------------------------------------------------------------------------------

    def attempt(self, group: str) -> AttemptRecord:
        """Return the record of the group's newest process. Raise `GaveUp` if it has none."""
        attempt = self.records.newest(group)
        if attempt is None:
            raise GaveUp(f"group {group} has not started")
        return attempt

    def attempts(self) -> list[AttemptRecord]:
        """Return the record of each group's newest process."""
        return [self.attempt(name) for name in self.names]

    def wait_together(self, after: float = 0.0, steps: int = SETTLED) -> None:
        """Wait until all groups have committed `steps` steps together since `after` (monotonic seconds)."""

        def ready() -> bool:
            self._check_alive()
            attempts = {x.group: x for x in self.records.update() if x.group in self.names}
            return len(attempts) == len(self.names) and all(
                sum(c.t > after and c.mine and c.groups == len(self.names) for c in x.commits[-2 * steps :]) >= steps
                for x in attempts.values()
            )

        wait_for(ready, START, f"{self.library.module}: {len(self.names)} groups train together")

    def wait_warm(self) -> None:
        """Wait until each of our launchers has its pre-imported process, some seconds after the job's start."""
        if not (self.launched and self.library.is_ours):
            return

        def ready() -> bool:
            self._check_alive()
            warm = {str(e["group"]) for e in read_events(self.folder / "run") if e["event"] == "warm"}
            return warm == set(self.names)

        wait_for(ready, START, "every launcher has its pre-imported process", poll=0.25)

    def _check_alive(self) -> None:
        """Raise `GaveUp` if a group has ended."""
        for name in self.names:
            if self.gone(name):
                raise GaveUp(f"group {name} of {self.library.module} ended:\n{self.last_words(name)}")
