"""Attack a lighthouse and two trainers that train, and say what it cost them.

    python -m tests.extended.attacks.run                  # all attacks, a table
    python -m tests.extended.attacks.run idle_group --seconds 15 --out attacks.json

Each attack gets a lighthouse and two groups of its own, started as docs/without_torchx.md says, with a token or without.
Figures: the longest time between two commits of each group while it lasts (quiet: the same before it), the memory (RSS) of
the lighthouse and of the trainers before and at the most, and whether both groups train together at the end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.extended.attacks import attackers
from tests.extended.attacks.attackers import Aim
from torchft_x.observe.events import EventTail
from torchft_x.observe.report import commits

ROOT = Path(__file__).parents[3]
MODEL = ("--width", "32", "--layers", "1", "--heads", "2", "--batch-size", "2", "--seq-len", "32", "--data-mb", "0.2")
TOKEN = "a-token-of-these-tests"


@dataclass(frozen=True)
class Attack:
    """One row of the table. `act` is called on a thread; it ends when `Aim.over` is set, or by itself."""

    act: Callable[[Aim], None]
    token: bool = True  # the run has a token
    files: int | None = 1024  # limit of open files, soft: what most systems begin with
    hard: int | None = None  # and the hard one; None: as it is
    kill: bool = False  # kill group 1 in the middle, and start it again


ATTACKS = {
    "none": Attack(lambda aim: None),
    "none_kill": Attack(lambda aim: None, kill=True),
    "billion_steps": Attack(attackers.billion_steps, token=False),
    "unfinished_lighthouse": Attack(attackers.unfinished_at_lighthouse),
    "unfinished_trainer": Attack(attackers.unfinished_at_trainer),
    "unfinished_no_token": Attack(attackers.unfinished_at_lighthouse, token=False),
    "empty_streams": Attack(attackers.empty_streams),
    "empty_streams_no_token": Attack(attackers.empty_streams, token=False),
    "idle_lighthouse": Attack(attackers.idle_at_lighthouse, kill=True),
    "idle_lighthouse_hard": Attack(attackers.idle_at_lighthouse, hard=1024, kill=True),
    "idle_trainer": Attack(attackers.idle_at_trainer, kill=True),
    "idle_trainer_hard": Attack(attackers.idle_at_trainer, hard=1024, kill=True),
    "greeted_trainer_hard": Attack(attackers.greeted_at_trainer, hard=1024, kill=True),
    "greeted_lighthouse_hard": Attack(attackers.greeted_at_lighthouse, hard=1024, kill=True),
    "checkpoint_headers": Attack(attackers.checkpoint_headers),
    "huge_id": Attack(attackers.huge_id),
    "huge_hello": Attack(attackers.huge_hello),
    "lies": Attack(attackers.lies),
}


class Run:
    """A lighthouse and two groups; nothing of it is left behind."""

    def __init__(self, folder: Path, attack: Attack) -> None:
        self._folder, self._attack = folder, attack
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tail = EventTail(folder)
        self.events: list[dict[str, Any]] = []
        self.aim: Aim

    def __enter__(self) -> Run:
        try:
            return self._begin()
        except BaseException:
            self.__exit__()
            raise

    def _begin(self) -> Run:
        address, token = self._folder / "address", self._folder / "secret"
        token.touch(0o600)
        token.write_text(TOKEN)
        more = ["--token_file", str(token), "--run_dir", str(self._folder)] if self._attack.token else []
        command = ["-m", "torchft_x", "lighthouse", "--min_replicas", "1", "--bind", "127.0.0.1:0", *more]
        self._start("lighthouse", *command, "--address_file", str(address))
        wait(address.exists, 30.0, "the lighthouse")
        self._lighthouse = address.read_text().strip()
        for group in ("0", "1"):
            self.train(group)
        wait(lambda: self.together(), 120.0, "both groups to train", self.log)
        self.aim = Aim.find(self._lighthouse, TOKEN if self._attack.token else None)
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def log(self) -> str:
        return "\n".join(p.read_text(errors="replace")[-1500:] for p in sorted(self._folder.glob("*.log")))

    def train(self, group: str) -> None:
        token = {"TORCHFT_X_TOKEN": TOKEN} if self._attack.token else {}
        steps = ("--steps", "1000000", "--pace", "0.02", "--log-every", "1000")
        self._start(
            f"group{group}", "scripts/train_ddp.py", *steps, *MODEL, TORCHFT_LIGHTHOUSE=self._lighthouse,
            REPLICA_GROUP_ID=group, NUM_REPLICA_GROUPS="2", TORCHFT_X_RUN_DIR=str(self._folder),
            TORCHFT_X_ADVERTISE_HOST="127.0.0.1", **token,
        )  # fmt: skip

    def _start(self, name: str, *command: str, **variables: str) -> None:
        def limit() -> None:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            hard = min(hard, self._attack.hard or hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, self._attack.files or soft), hard))

        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", **variables}, preexec_fn=limit,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def alive(self) -> dict[str, bool]:
        return {name: p.poll() is None for name, p in self._processes.items()}

    def memory(self) -> dict[str, float]:
        """RSS in MB."""
        found = {}
        for name, process in self._processes.items():
            with suppress(OSError, IndexError, ValueError):
                pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
                found[name] = pages * 4096 / 1e6
        return found

    def look(self) -> None:
        self.events += self._tail.new()

    def gap(self, since: float, until: float, group: str) -> float:
        times = [since, *(float(e["t"]) for e in commits(self.events, group=group) if since < e["t"] < until), until]
        return max(b - a for a, b in itertools.pairwise(times))

    def together(self, since: float = 0.0) -> bool:
        """Both groups have committed some steps in the last quorum."""
        self.look()
        newest = [e for e in commits(self.events) if float(e["t"]) > since][-20:]
        return len({(e["group"], e["quorum"]) for e in newest}) == 2 and len({e["quorum"] for e in newest}) == 1


def wait(condition: Callable[[], object], seconds: float, what: str, why: Callable[[], str] = lambda: "") -> float:
    """Seconds it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"waited {seconds:g} s for {what}; {why()}")
        time.sleep(0.02)
    return time.monotonic() - began


def measure(name: str, seconds: float = 10.0, quiet: float = 3.0) -> dict[str, Any]:
    """One row."""
    attack = ATTACKS[name]
    with tempfile.TemporaryDirectory() as folder, Run(Path(folder), attack) as run:
        began = time.time()
        time.sleep(quiet)
        run.look()
        before, most = run.memory(), run.memory()
        t = time.time()
        still = max(run.gap(began, t, g) for g in ("0", "1"))
        thread = threading.Thread(target=attack.act, args=(run.aim,), daemon=True)
        thread.start()
        killed = None
        while time.time() < t + seconds:
            time.sleep(0.05)
            run.look()
            most = {k: max(v, most.get(k, 0.0)) for k, v in run.memory().items()}
            if attack.kill and killed is None and time.time() > t + seconds / 3:
                killed = time.time()
                run.kill("group1")
        end = time.time()
        groups = ("0",) if attack.kill else ("0", "1")
        gaps = {g: round(run.gap(t, end, g), 2) for g in groups}
        row: dict[str, Any] = {"attack": name, "quiet": round(still, 2), "gap": gaps}
        if attack.kill:  # it comes back while the attack goes on
            again = time.time()
            run.train("1")
            try:
                row["rejoin"] = round(wait(lambda: run.together(again), 60.0, "group 1 to come back"), 1)
            except TimeoutError:
                row["rejoin"] = None
        run.aim.over.set()
        thread.join(10.0)
        now = time.time()
        try:
            row["together_again"] = round(wait(lambda: run.together(now), 60.0, "both"), 1)
        except TimeoutError:
            row["together_again"] = None
            print(run.log(), file=sys.stderr)
        row["alive"] = all(run.alive().values())
        row["memory_mb"] = {k: (round(before.get(k, 0)), round(v)) for k, v in most.items()}
        row["did"] = run.aim.did
        return row


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("attacks", nargs="*", default=list(ATTACKS), help=f"of {', '.join(ATTACKS)}")
    p.add_argument("--seconds", type=float, default=10.0, help="how long each lasts (default %(default)s)")
    p.add_argument("--out", type=Path, help="write the figures as JSON here, too")
    args = p.parse_args(argv)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows = []
    for name in args.attacks:
        try:
            rows.append(measure(name, args.seconds))
        except TimeoutError as e:
            rows.append({"attack": name, "error": str(e)})
        print(json.dumps(rows[-1]), flush=True)
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
