"""Kill groups at random while they train, and check that each sample was committed exactly once per epoch.

    python -m benchmarks.evidence.exact_data --kills 1000 --length 100000 --epochs 3 --policy strict
    python -m benchmarks.evidence.exact_data --kills 100 --length 20000 --layout hsdp2x2
    python -m benchmarks.evidence.exact_data --kills 100 --length 20000 --layout diloco --policy shrink --every 5
    python -m benchmarks.evidence.exact_data --kills 300 --length 100000 --policy sampler      # torchft's, for comparison
    python -m benchmarks.evidence.exact_data --policy sampler --reference torchft --slots 10       # over torchft itself
    python -m benchmarks.evidence.exact_data --kills 100 --policy strict --reproducible        # compare the digests
    python -m benchmarks.evidence.exact_data --kills 20 --policy strict --reproducible --check-every 2   # names nobody

Groups are real processes, with gloo and a lighthouse on loopback, and train with `ElasticLoader` (`exact_worker`). A group
is killed with SIGKILL at a random moment and started again at once, whatever it does just then, as long as another group
that has trained is alive. Kills are spread over the samples at random. After a third of them two more groups start. After
half, everything is killed and begins again from the newest `Checkpoint`, with a new lighthouse. After two thirds the two
groups leave. `--reference torchft` runs `exact_torchft` under the same kills, without the other three, with the packages
of the environment that TORCHFT_X_PEER_PYTHON names (torchft-nightly, torchdata).

`check_samples.py` then compares what the scripts logged with the data set, and with the final parameters, which count.
The exit code is its own, or 1 if no group came to the end.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import multiprocessing
import os
import random
import site
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from benchmarks import libraries
from benchmarks.evidence.exact_worker import HOST, SAMPLERS, Job, RankAttempt

MORE = 2  # groups that are added in the middle
LAST = 0.97  # share of the samples before which the last kill comes, so that its victim can come back
DIFFERENT = "different gradients of slot"  # part of the sentence of every comparison that does not fit
STUCK = 120.0  # seconds without a commit after which the run is given up


class Group:
    """A group's processes over its attempts."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.attempts = 0
        self.processes: list[Any] = []
        self.store: Any = None

    @property
    def ended(self) -> list[int]:
        """Exit codes, if all ranks have ended."""
        codes = [p.exitcode for p in self.processes]
        return [] if None in codes else codes


class Run:
    """One training under kills.

    Args:
        job: what the groups do.
        kills: number of kills.
        seed: seed of moments and victims.
        scale: whether groups are added and leave.
        restart: whether everything is killed once.
        reference: whether torchft trains.
    """

    def __init__(self, job: Job, *, kills: int, seed: int, scale: bool, restart: bool, reference: bool) -> None:
        self._job, self._rng = job, random.Random(seed)
        worker = f"benchmarks.evidence.exact_{'torchft' if reference else 'worker'}"
        self._target = importlib.import_module(worker).train
        library = "torchft" if reference else "torchft_x.rpc"
        self._lighthouse_type = importlib.import_module(f"{library}.coordination").LighthouseServer
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([worker])
        self._groups = [Group(n) for n in range(job.groups)]
        self._done = self._context.RawArray("q", job.groups + MORE)  # as of `train`
        self._stop = self._context.RawArray("b", job.groups + MORE)
        total = job.length * job.epochs
        due = [(self._rng.random() * LAST * total, "kill") for _ in range(kills)]
        due += [(total / 3, "grow"), (2 * total / 3, "shrink")] if scale else []
        due += [(total / 2, "restart")] if restart else []
        self._due = deque(sorted(due))
        self.counts: Counter[str] = Counter()  # of what was done to the groups, and what they did unexpectedly
        self.problems: list[str] = []

    def run(self) -> None:
        self._new_lighthouse()
        try:
            for group in self._groups:
                self._start(group)
            self._train()
        finally:
            for group in self._groups:
                self._kill(group)
            self._lighthouse.shutdown()

    def _new_lighthouse(self) -> None:
        self._lighthouse = self._lighthouse_type(f"{HOST}:0", 1, 5000, heartbeat_timeout_ms=5000)

    def _train(self) -> None:
        """Do what is due until a group has ended well, then wait for the others, which may have more to train."""
        newest, since, ending = 0, time.monotonic(), False
        while not (ending and all(g.ended for g in self._groups)) and time.monotonic() - since < STUCK:
            time.sleep(self._rng.uniform(0.001, 0.01))
            now = max(self._done)
            if now > newest:
                newest, since = now, time.monotonic()
            ending = ending or self._tend()
            if not ending and self._due and now >= self._due[0][0] and getattr(self, f"_{self._due[0][1]}_due")():
                self._due.popleft()
        if not ending:
            self.problems.append(f"no commit for {STUCK:.0f} s at sample {newest}")
            return
        self.counts["late at the end"] = sum(g.ended != [0] * self._job.ranks for g in self._groups)

    def _tend(self) -> bool:
        """Start groups again that ended by themselves. Return whether one has come to the end of the training."""
        for group in list(self._groups):
            if not group.ended:
                continue
            if self._stop[group.number] and not any(group.ended):
                self._groups.remove(group)
                self.counts["left"] += 1
            elif not any(group.ended):
                return True
            else:
                self.counts[f"ended with {max(group.ended, key=abs)}"] += 1
                self._kill(group)
                self._start(group)
        return False

    def _start(self, group: Group) -> None:
        group.attempts += 1
        group.store = dist.TCPStore(HOST, 0, None, True, timedelta(seconds=20), wait_for_workers=False)
        self._done[group.number] = 0
        group.processes = []
        for rank in range(self._job.ranks):
            attempt = RankAttempt(group.number, group.attempts, rank, group.store.port, self._lighthouse.address())
            arguments = (self._job, attempt, self._done, self._stop)
            process = self._context.Process(target=self._target, args=arguments, daemon=not self._job.workers)
            process.start()
            group.processes.append(process)

    def _kill(self, group: Group) -> None:
        """Kill all ranks, a random one first."""
        for process in self._rng.sample(group.processes, len(group.processes)):
            process.kill()
            if len(group.processes) > 1:
                time.sleep(self._rng.uniform(0, 0.02))
        for process in group.processes:
            process.join()

    # --- what is due: each returns whether it was done ------------------------------------------------------------------

    def _kill_due(self) -> bool:
        trained = [g for g in self._groups if self._done[g.number] and not g.ended]
        victims = [g for g in self._groups if any(other is not g for other in trained)]
        if not victims:
            return False
        victim = self._rng.choice(victims)
        self.counts["kills"] += 1
        self.counts["kills before the first commit of an attempt"] += not self._done[victim.number]
        self._kill(victim)
        self._start(victim)
        return True

    def _grow_due(self) -> bool:
        for number in range(self._job.groups, self._job.groups + MORE):
            self._groups.append(Group(number))
            self._start(self._groups[-1])
        self.counts["added"] = MORE
        return True

    def _shrink_due(self) -> bool:
        for number in range(self._job.groups, self._job.groups + MORE):
            self._stop[number] = 1
        return True

    def _restart_due(self) -> bool:
        for process in [p for group in self._groups for p in group.processes]:
            process.kill()
        for group in self._groups:
            self._kill(group)
        self._lighthouse.shutdown()
        self._new_lighthouse()
        for group in self._groups:
            self._start(group)
        self.counts["restarts of everything"] += 1
        return True


def add_torchft() -> str:
    """Append the peer's packages to the path of this process and its children, and return torchft's version."""
    peer = libraries.find_peer()
    if isinstance(peer, str):
        sys.exit(peer)
    command = [peer.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site.addsitedir(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    if not importlib.util.find_spec("torchdata"):
        sys.exit(f"torchdata is not installed for {peer.python}: torchft's loop takes its loader from there")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # multiprocessing's server imports before it knows our path
    return peer.versions["torchft-nightly"]


def result_of(args: argparse.Namespace, job: Job, run: Run, seconds: float, version: str) -> dict[str, Any]:
    """Run the checker, and return the figures."""
    if not list(job.folder.glob("*.digest" if job.reproducible else "*.counts")):
        run.problems.append("no group came to the end")
    left_out = job.length % (job.batch * (1 if job.policy == "shrink" else job.slots)) if job.tail == "drop" else 0
    checker = Path(__file__).with_name("check_samples.py")
    logs = [path.read_text(errors="replace") for path in job.folder.glob("*.log")]
    run.problems += sorted({line for log in logs for line in log.splitlines() if DIFFERENT in line})
    command = [sys.executable, str(checker), str(job.folder), "--length", str(job.length), "--epochs", str(job.epochs)]
    done = subprocess.run([*command, "--left-out", str(left_out)], capture_output=True, text=True)
    kinds: Counter[str] = Counter()
    for path in job.folder.glob("*.jsonl"):
        kinds.update(line.split('"')[3] for line in path.read_text().splitlines())
    return {
        **({"reference": f"torchft-nightly {version}"} if version else {}), "policy": job.policy, "layout": args.layout,
        "tail": job.tail, "groups": job.groups, "length": job.length, "epochs": job.epochs,
        "global_batch": job.slots * job.batch, "micro_batch": job.batch, "seed": args.seed, "check_every": job.check_every,
        **run.counts, "of groups": {k: kinds[k] for k in ("redo", "adopt", "drop", "new_lineage")},
        "seconds": round(seconds, 1), "load": round(os.getloadavg()[0], 1), "problems": run.problems,
        "digests": sorted({path.read_text() for path in job.folder.glob("*.digest")}),
        "checker": [*done.stdout.splitlines(), *done.stderr.splitlines()[-1:]], "exit_code": done.returncode,
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--policy", choices=["constant", "strict", "shrink", *SAMPLERS], default="constant")
    p.add_argument("--reference", choices=["torchft"], help="train with this library, under a policy of its sampler")
    p.add_argument("--tail", choices=["wrap", "short", "drop"], default="wrap")
    p.add_argument("--layout", choices=["ddp", "hsdp2x2", "diloco"], default="ddp")
    p.add_argument("--kills", type=int, default=100)
    p.add_argument("--length", type=int, default=10_000, help="samples of the data set")
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--groups", type=int, default=0, help="groups at the start (default: 4, or 2 for hsdp2x2)")
    p.add_argument("--slots", type=int, default=6, help="micro batches of a step; diloco: steps of a period")
    p.add_argument("--batch", type=int, default=2, help="samples of a micro batch")
    p.add_argument("--workers", type=int, default=0, help="loader processes of each rank")
    p.add_argument("--every", type=int, default=100, help="steps between two checkpoints")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument(
        "--reproducible", action="store_true", help="train a model whose final bits are printed; with strict"
    )
    p.add_argument("--check-every", type=int, default=0, help="steps between two comparisons of a slot; 0: none")
    p.add_argument("--no-scale", action="store_true", help="add no groups in the middle")
    p.add_argument("--no-restart", action="store_true", help="do not restart everything in the middle")
    p.add_argument("--keep", type=Path, help="folder in which the lines and logs stay (default: a temporary one)")
    p.add_argument("--out", type=Path, help="append the figures as a line of JSON here")
    args = p.parse_args(argv)
    ranks = 2 if args.layout == "hsdp2x2" else 1
    groups = args.groups or (2 if ranks > 1 else 4)
    if groups < 2:
        p.error("--groups must be at least 2: one must go on when another is killed")
    if args.layout != "ddp" and args.policy in SAMPLERS:
        p.error(f"--policy {args.policy} is for --layout ddp")
    if args.reference and args.policy not in SAMPLERS:
        p.error(f"--reference {args.reference} is for --policy {' or '.join(SAMPLERS)}")
    if args.reference and (args.slots * args.batch % groups or args.length % (args.slots * args.batch)):
        p.error("--reference takes a --length of whole steps, and steps (--slots times --batch) that groups divide")
    version = add_torchft() if args.reference else ""
    if args.layout == "diloco" and args.policy != "shrink":
        p.error("--layout diloco is for --policy shrink: each inner step has one micro batch")
    with tempfile.TemporaryDirectory() as made:
        folder = (args.keep or Path(made)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        every = 0 if args.no_restart or args.reference else args.every
        job = Job(
            folder, args.layout, groups, ranks, args.length, args.epochs, args.policy, args.tail, args.slots, args.batch,
            args.workers, every, args.reproducible, args.check_every,
        )  # fmt: skip
        scale = not (args.no_scale or args.policy in SAMPLERS)  # the sampler's shares are fixed at the start
        run = Run(
            job, kills=args.kills, seed=args.seed, scale=scale, restart=bool(every), reference=bool(args.reference)
        )
        began = time.monotonic()
        run.run()
        result = result_of(args, job, run, time.monotonic() - began, version)
    print(json.dumps(result, indent=1), flush=True)
    if args.out:
        with args.out.open("a") as out:
            out.write(json.dumps(result) + "\n")
    return 1 if run.problems else result["exit_code"]


if __name__ == "__main__":
    sys.exit(main())
