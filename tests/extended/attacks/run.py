"""Attack a lighthouse and two groups that train, and print what it cost them.

    python -m tests.extended.attacks.run                  # one attack after the other
    python -m tests.extended.attacks.run idle_connections --seconds 15

Which messages are refused, and how, is tested in tests/unit/rpc, tests/process/rpc and tests/torch/transfer/http. Each attack
gets a lighthouse and two groups of its own, with a token, and at most 1024 open files for each process. In the middle group 1
is killed, and started again while the attack goes on. Figures: the longest time between two commits of group 0 before the
attack and during it, seconds until both train together again, and the memory (MB) of the processes before and at the most.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tests.extended.attacks import attackers
from tests.extended.attacks.attackers import Aim
from tests.journeys.jobs import SMALL, Job, running
from tests.util import wait_for
from torchft_x import env
from torchft_x.observe.report import commits, training_together

TOKEN = "a-token-of-these-tests"
ATTACKS: dict[str, Callable[[Aim], None]] = {
    "none": lambda aim: None,
    "idle_connections": attackers.idle_connections,
    "endless_headers": attackers.endless_headers,
    "lies": attackers.lies,
}


class Run:
    """A lighthouse and two groups that train together."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._jobs: dict[str, Job] = {}
        token, address = folder / "secret", folder / "address"
        token.touch(0o600)
        token.write_text(TOKEN)
        words = ["lighthouse", "--min_replicas", "1", "--bind", "127.0.0.1:0", "--token_file", str(token)]
        self._start("lighthouse", "-m", "torchft_x", *words, "--address_file", str(address))
        wait_for(address.exists, 30, "the lighthouse")
        self._lighthouse = address.read_text().strip()
        self.train("0")
        self.train("1")
        wait_for(self.together, 120, "both groups to train")
        self.aim = attackers.find(self._lighthouse, TOKEN)

    def train(self, group: str) -> None:
        steps = ("--steps", "1000000", "--pace", "0.02", "--log-every", "1000")
        where = {env.LIGHTHOUSE: self._lighthouse, env.TOKEN: TOKEN, env.ADVERTISE_HOST: "127.0.0.1"}
        numbers = {env.REPLICA_GROUP_ID: group, env.NUM_REPLICA_GROUPS: "2"}
        self._start(f"group{group}", "scripts/train_ddp.py", *steps, *SMALL, **where, **numbers)

    def _start(self, name: str, *words: str, **variables: str) -> None:
        command = ["sh", "-c", 'ulimit -n 1024; exec "$@"', "sh", sys.executable, *words]
        variables |= {env.RUN_DIR: str(self._folder), "OMP_NUM_THREADS": "1"}
        log = self._folder / f"{name}.log"
        self._jobs[name] = self._stack.enter_context(running(command, log, self._folder, **variables))

    def kill(self, name: str) -> None:
        self._jobs[name].process.kill()
        self._jobs[name].process.wait()

    def events(self) -> list[dict[str, Any]]:
        return self._jobs["lighthouse"].events()

    def alive(self) -> bool:
        return all(job.process.poll() is None for job in self._jobs.values())

    def memory(self) -> dict[str, float]:
        found = {}
        for name, job in self._jobs.items():
            with suppress(OSError, IndexError):  # it has just been killed
                found[name] = int(Path(f"/proc/{job.process.pid}/statm").read_text().split()[1]) * 4096 / 1e6
        return found

    def gap(self, since: float) -> float:
        """The longest time without a commit of group 0 since then."""
        times = [float(e["t"]) for e in commits(self.events(), group="0") if float(e["t"]) > since]
        return max(b - a for a, b in itertools.pairwise([since, *times, time.time()]))

    def together(self, since: float = 0.0) -> bool:
        return training_together([e for e in self.events() if float(e["t"]) > since], 2)


def measure(name: str, seconds: float, quiet: float = 3.0) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        run = Run(Path(folder), stack)
        began = time.time()
        time.sleep(quiet)
        row: dict[str, Any] = {"attack": name, "gap_before": round(run.gap(began), 2)}
        before = run.memory()
        most = dict(before)
        began = time.time()
        thread = threading.Thread(target=ATTACKS[name], args=(run.aim,), daemon=True)
        thread.start()
        killed = False
        while time.time() < began + seconds:
            time.sleep(0.05)
            most |= {k: max(v, most[k]) for k, v in run.memory().items()}
            if not killed and time.time() > began + seconds / 3:
                run.kill("group1")
                killed = True
        row["gap"] = round(run.gap(began), 2)
        again = time.time()
        run.train("1")
        try:
            wait_for(lambda: run.together(again), 60, "group 1 to come back")
            row["rejoined_after"] = round(time.time() - again, 1)
        finally:
            run.aim.over.set()
        thread.join(10.0)
        row["memory_mb"] = {k: (round(before[k]), round(v)) for k, v in most.items()}
        return {**row, "alive": run.alive(), "did": run.aim.did}


def main() -> int:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("attacks", nargs="*", default=list(ATTACKS), help=f"of {', '.join(ATTACKS)}")
    p.add_argument("--seconds", type=float, default=10.0, help="how long each lasts (default %(default)s)")
    args = p.parse_args()
    bad = 0
    for name in args.attacks:
        try:
            row = measure(name, args.seconds)
            bad += not row["alive"]
        except AssertionError as e:
            row, bad = {"attack": name, "error": str(e)}, bad + 1
        print(json.dumps(row), flush=True)
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
