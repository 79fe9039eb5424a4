"""Two machines with a cable between them and names that lead nowhere: they train together, one is killed, and heals.

The lighthouse and group 0 are on the left machine, group 1 on the right. Nothing tells them by which address others reach
them, but where the test says so: they find it out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts import check_params
from tests.journeys.jobs import ROOT, Events
from tests.scenario import networks
from tests.scenario.cable import SIDES, Pair
from tests.scenario.real import FOREIGN, TRAINER
from tests.util import scaled, wait_for
from torchft_x import env
from torchft_x.observe.processes import job_processes
from torchft_x.observe.report import commits, training_together, workers

pytestmark = [pytest.mark.timeout(150)]
PORT = 29510


@dataclass(frozen=True)
class Case:
    families: str  # that the machines have
    lighthouse: str  # family of its address
    own_name: str | None  # what the machines' own name leads to; None: nowhere
    variables: tuple[tuple[str, str], ...] = ()


CASES = {
    "IPv4 only, own name is the loopback": Case("4", "4", "127.0.1.1"),
    "IPv6 only, no names": Case("6", "6", None),
    "dual, by interface": Case("46", "6", "127.0.1.1", variables=((env.ADVERTISE_INTERFACE, "eth0"),)),
}


class Run:
    """The job's processes, on both machines."""

    def __init__(self, pair: Pair, case: Case, folder: Path) -> None:
        self.run_dir, self.dumps = folder / "run", folder / "dumps"
        self.events = Events(self.run_dir)
        self._pair = pair
        self._case = case
        self._started: list[subprocess.Popen[bytes]] = []
        self.run_dir.mkdir(parents=True)

    def start(self, side: str, name: str, *command: str) -> None:
        case = self._case
        own = {k: v for k, v in env.everything().items() if not k.startswith(FOREIGN)}
        more = {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            env.LIGHTHOUSE: f"http://{self._pair.url_host('left', case.lighthouse)}:{PORT}",
            env.TOKEN: "of-the-test",
            env.TIMEOUT: str(scaled(20)),
            env.LAUNCHER_PID: str(os.getpid()),  # they end with us, however we end
        }
        with (self.run_dir / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*self._pair.command(side), sys.executable, "-m", "torchft_x", *command], cwd=ROOT,
                env={**own, **more, **dict(case.variables)}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)

    def start_group(self, side: str, group: str) -> None:
        command = ["supervise", "--group", group, "--groups", "2", "--workers", "1"]
        script = [str(TRAINER), "--dump-params", str(self.dumps), "--ballast", "1"]
        self.start(
            side, f"group{group}", *command, "--run_dir", str(self.run_dir), "--max_restarts", "5", "--", *script
        )

    def until(self, condition: object, seconds: float, what: str) -> None:
        assert callable(condition)
        try:
            wait_for(lambda: condition() or any(p.poll() is not None for p in self._started), seconds, what)
            assert condition(), f"something has ended before {what}"
        except AssertionError as e:
            logs = [f"--- {p.name}\n{p.read_text(errors='replace')[-3000:]}" for p in self.run_dir.glob("*.log")]
            raise AssertionError("\n".join([*logs, str(e)])) from None

    def end(self) -> None:
        for pid in [*(p.pid for p in self._started if p.poll() is None), *job_processes(self.run_dir)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for p in self._started:
            p.wait(scaled(10))
        wait_for(lambda: not job_processes(self.run_dir), 20, "the end of all processes")


@contextmanager
def job(case: Case, folder: Path) -> Iterator[Run]:
    with Pair(case.families) as pair:
        pair.own_name(case.own_name)
        run = Run(pair, case, folder)
        try:
            serve = ["lighthouse", "--min_replicas", "1", "--bind", f"[::]:{PORT}", "--run_dir", str(run.run_dir)]
            run.start("left", "lighthouse", *serve)
            for group, side in enumerate(SIDES):
                run.start_group(side, str(group))
            yield run
        finally:
            run.end()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_they_train_together_and_a_killed_one_heals(case: Case, tmp_path: Path) -> None:
    if why := networks.missing():
        pytest.skip(why)
    with job(case, tmp_path) as run:
        run.until(lambda: training_together(run.events(), 2), 60, "both groups train together")
        before = next(w for w in workers(run.events()) if w.group == "1")
        os.kill(before.pid, signal.SIGKILL)

        def healed() -> bool:
            events = run.events()
            ends = [e for e in events if e["event"] == "heal_end" and e.get("group") == "1" and e["pid"] != before.pid]
            after = [
                e for e in commits(events, group="1") if ends and e["t"] > ends[-1]["t"] and e["participants"] == 2
            ]
            return len(after) > 10

        run.until(healed, 60, "group 1 has healed and trains with group 0")
    dumps = check_params.read_dumps(run.dumps)
    assert check_params.check(dumps) == []
    assert check_params.shared_steps(dumps) > 10
