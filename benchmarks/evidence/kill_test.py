"""Train with real processes, kill or stop random ones at random times, and check the outcome from outside.

    python -m benchmarks.evidence.kill_test --groups 2 --kills 20
    python -m benchmarks.evidence.kill_test --groups 3 --kills 100 --hangs 20 --lighthouse 20 --out kills.json -- --width 128
    python -m benchmarks.evidence.kill_test --component diloco --groups 3 --kills 20
    python -m benchmarks.evidence.kill_test --groups 4 --kills 50 --regardless 5

The job is started as by a user: ``torchx run ./components.py:ddp``. In random order, workers are killed (kill -9) or
stopped for some seconds (SIGSTOP), and the lighthouse is killed. All groups must train together again before the next
fault. At the end check_params.py compares every rank's parameters at every committed step, and a table shows the cost
of the faults and the lost batches. Arguments after ``--`` go to the training script, in place of those in MODEL. The
exit code is 0 only if all faults were done, the job ended with 0, and the check passed.

With --regardless, ``torchft_x chaos`` strikes a job of `local_ft` with Poisson kills of workers, supervisors and the
lighthouse, whatever its state. Then ``torchft_x report`` must name every fault, too, and no process may be left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.evidence import check_params
from benchmarks.evidence.kill_report import HANG, KILL, LIGHTHOUSE, Fault, report, show
from tests.events import commits, training_together, workers
from tests.unit.launch.lines import TORCHX_FT
from torchft_x import env
from torchft_x.observe.events import EventTail, read_events
from torchft_x.observe.processes import job_processes, lighthouse_process
from torchft_x.observe.run import read_run
from torchft_x.timing import TIMING

ROOT = Path(__file__).resolve().parents[2]
TOGETHER = 120.0  # seconds all groups may need to train together again; a start of three cold groups takes about 15
START = 180.0  # seconds until all groups train, the first time, with --regardless
BACK = 420.0  # seconds until all train after its last fault; groups that may hold a newer state are awaited for 300 s
FAULT = 60.0  # longest delay of one of its faults in seconds, while there is no victim
GONE = 20.0  # seconds for the last processes to go
STALL = 5.0  # seconds without a commit after which the run's folder is kept for a closer inspection
ENDLESS = 1_000_000  # steps; the --until file stops the job, since the time that groups need to rejoin is unknown
NOTICE = 3.0  # seconds of steps between writing the --until file and the last step: all ranks have read it by then
# Fewest steps after the last fault, so that there are shared ones to compare.
SHARED = {"ddp": 25, "hsdp": 25, "diloco": 5}
# A small model, and steps of some 40 ms, so that dumping and checking don't slow the job down.
MODEL = ["--width", "64", "--batch-size", "16", "--pace", "0.04"]


class Job:
    """One run of the real command, as a context manager that leaves no process behind."""

    def __init__(
        self,
        folder: Path,
        groups: int,
        script_args: list[str],
        *,
        keep: bool,
        component: str = "ddp",
        workers: int = 1,
        islands: str = "",
        scheduler: str = "local_cwd",
    ) -> None:
        self.run_dir = folder / "run"
        self.dumps = folder / "dumps"
        self.output = folder / "output.log"
        self.until = folder / "until"
        self.keep = keep  # whether dumps are kept; otherwise they are read and deleted while the job runs
        self.events: list[dict[str, Any]] = []  # all events read so far
        self._tail = EventTail(self.run_dir)
        command = [sys.executable, "-c", TORCHX_FT, "run", "-s", scheduler, f"./components.py:{component}"]
        command += ["--replicas", str(groups)]
        command += ["--islands", islands] if islands else ["--workers_per_replica", str(workers)]
        command += ["--max_restarts", "1000", "--run_dir", str(self.run_dir)]
        command += ["--script", f"benchmarks/trial/{component}.py", "--", "--dump-params", str(self.dumps)]
        command += ["--until", str(self.until), *script_args]
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for pid in job_processes(self.run_dir):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    @property
    def has_lighthouse(self) -> bool:
        """Whether the lighthouse's process exists, which it does a moment after the event of its restart."""
        return lighthouse_process(self.run_dir) is not None

    def watch(self, condition: Callable[[list[dict[str, Any]]], bool], seconds: float) -> bool:
        """Read events, and consume dumps, until `condition(events)`. Return False if job or time ends before."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            self.events += self._tail.new()
            if condition(self.events):
                return True
            if not self.keep:
                check_params.consume(self.dumps)
            time.sleep(0.1)
        return False

    def stop_soon(self, least: int = 0) -> None:
        """Write the --until file: a step that no group reaches within NOTICE, and at least `least` steps away."""
        steps = {int(e["step"]): float(e["t"]) for e in commits(self.events)}
        fresh = [step for step, t in steps.items() if t > time.time() - NOTICE]
        part = self.until.with_suffix(".part")
        part.write_text(str(max(steps) + max(len(fresh), least) + 2))
        part.rename(self.until)  # a reader sees the whole number or none


def commit_fault(job: Job, rng: random.Random, kind: str, what: str) -> Fault:
    """Do a fault to a random victim. Raise ProcessLookupError if the victim has just ended."""
    if kind == LIGHTHOUSE:
        pid = lighthouse_process(job.run_dir)
        if pid is None:
            raise ProcessLookupError("no lighthouse")
        t = time.time()
        os.kill(pid, signal.SIGKILL)
        return Fault(kind, "", t, t)
    alive = workers(job.events)
    if what == "mixed":
        what = rng.choice(("rank0", "other", "group"))
    worker = rng.choice([w for w in alive if what in ("worker", "group") or (w.rank == 0) == (what == "rank0")])
    victims = [w.pid for w in alive if w.group == worker.group] if what == "group" else [worker.pid]
    t = time.time()
    for pid in victims:
        os.kill(pid, signal.SIGSTOP if kind == HANG else signal.SIGKILL)
    if kind == HANG:
        job.watch(
            lambda _: False, rng.uniform(2.0, 4.0) * TIMING.silence_stopped
        )  # 3 to 6 s, so that the stop is detected
        for pid in victims:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:  # its supervisor has killed it
                pass
    return Fault(kind, worker.group, t, time.time() if kind == HANG else t)


def recovered(events: list[dict[str, Any]], last: Fault | None, groups: int) -> bool:
    """Return whether the victim of the last fault is back, and all groups train together."""
    if last is None:
        return training_together(events, groups)
    later = [e for e in events if float(e["t"]) > last.over + 0.5]
    if last.kind == LIGHTHOUSE:
        back = any(e.get("event") == "restart" and e.get("role") == "lighthouse" for e in events if e["t"] > last.t)
    else:
        back = bool(commits(later, group=last.group))
    return back and training_together(later, groups)


def run(job: Job, args: argparse.Namespace) -> tuple[list[Fault], bool]:
    """Do all faults. Return those that were done, and whether all groups trained together again after the last one."""
    rng = random.Random(args.seed)
    kinds = [KILL] * args.kills + [HANG] * args.hangs + [LIGHTHOUSE] * args.lighthouse
    if args.hangs or args.lighthouse:
        rng.shuffle(kinds)
    done: list[Fault] = []
    while True:  # once more at the end: the last victim must be back as well
        n = len(done)
        last = done[-1] if done else None
        if not job.watch(
            lambda events, last=last: recovered(events, last, args.groups) and job.has_lighthouse, TOGETHER
        ):
            why = "ended" if job.process.poll() is not None else f"did not train together again in {TOGETHER:.0f} s"
            print(f"the job {why} after {n} of {len(kinds)} faults; its last words:")
            print("\n".join(f"    {line}" for line in job.output.read_text(errors="replace").splitlines()[-20:]))
            return done, False
        if n == len(kinds):
            return done, True
        job.watch(lambda _: False, rng.uniform(0.3, 2.0))
        try:
            done.append(commit_fault(job, rng, kinds[n], args.what))
        except ProcessLookupError:  # the victim has just ended by itself: the next turn picks another, or ends
            continue
        who = f"group {done[-1].group}" if done[-1].group else "the lighthouse"
        print(f"{n + 1}: {kinds[n].split(' of ')[0]}, {who}, at step {commits(job.events)[-1].get('step')}", flush=True)


def run_regardless(job: Job, args: argparse.Namespace) -> tuple[list[str], bool]:
    """Let ``torchft_x chaos`` do all faults. Return what went wrong, and whether all groups trained together again."""
    if not job.watch(lambda events: training_together(events, args.groups), START):
        return ["the groups did not begin to train"], False
    words = [
        "--mean",
        str(args.regardless),
        "--count",
        str(args.kills),
        "--seed",
        str(args.seed),
        "--kinds",
        args.kinds,
    ]
    log = job.output.with_name("chaos.log")
    with log.open("wb") as out:
        chaos = subprocess.Popen(
            [sys.executable, "-m", "torchft_x", "chaos", str(job.run_dir), *words],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        job.watch(lambda _: chaos.poll() is not None, args.kills * (args.regardless * 3 + FAULT))
        chaos.wait(FAULT)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if chaos.poll() is None:
            chaos.terminate()  # it then continues the processes that it has stopped
            chaos.wait(10.0)
    problems = [f"chaos ended with {chaos.returncode}: {last_words(log)}"] if chaos.returncode else []
    settled = time.time()
    if job.watch(lambda events: training_together([e for e in events if float(e["t"]) > settled], args.groups), BACK):
        return problems, True
    return [*problems, f"not all groups trained together within {BACK:.0f} s of the last fault"], False


def report_regardless(job: Job, args: argparse.Namespace, findings: list[str]) -> dict[str, Any]:
    """Return the results of a run as JSON holds them, with further findings."""
    deadline = time.monotonic() + GONE
    while (left := job_processes(job.run_dir)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        findings.append(f"{len(left)} processes were left")
    if job.process.returncode:
        findings.append(f"the job ended with {job.process.returncode}: {last_words(job.output)}")
    events = read_events(job.run_dir)
    begun = check_params.lineages(events)
    dumps = check_params.read_dumps(job.dumps) if job.dumps.is_dir() else []
    findings += check_params.check(dumps, begun) if dumps else ["no dumps were written"]
    run = read_run(job.run_dir)
    losses = run.losses if run is not None else []
    named = {loss.by.number for loss in losses if loss.by is not None}
    if missing := sorted(set(range(1, args.kills + 1)) - named):
        findings.append(f"the report does not name the faults {missing}")
    command = [sys.executable, "-m", "torchft_x", "report", str(job.run_dir)]
    reported = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    (job.run_dir.parent / "report.txt").write_text(reported.stdout + reported.stderr)
    if reported.returncode:
        findings.append(f"torchft_x report ended with {reported.returncode}: {reported.stderr.strip()[-300:]}")
    return {
        "mean": args.regardless,
        "faults": dict(Counter(str(e.get("kind")) for e in events if e.get("event") == "fault")),
        "named": len(named),
        "dumps": len(dumps),
        "last_step": max((d.step for d in dumps), default=0),
        "shared_steps": check_params.shared_steps(dumps, begun),
        "steps_lost": [int(e.get("steps") or 0) for e in events if e.get("event") == "new_lineage"],
        "stood": round(run.stood, 1) if run is not None else None,
        "longest_stood": round(max((loss.stood for loss in losses), default=0.0), 1),
        "trained": round(run.trained[1] - run.trained[0], 1) if run is not None and run.trained is not None else None,
        "findings": findings,
    }


def last_words(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "it said nothing"


def compare(dumps: Path, ranks: int, script_args: list[str]) -> dict[str, Any]:
    """Run hsdp_reference.py, and return its result, or its last line under "error" if it failed."""
    print("comparing with one process that computes all batches", flush=True)
    command = [
        sys.executable,
        "-m",
        "benchmarks.evidence.hsdp_reference",
        str(dumps),
        "--ranks",
        str(ranks),
        "--",
        *script_args,
    ]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        return dict(json.loads(done.stdout))
    output = (done.stderr or done.stdout).strip().splitlines()
    return {"error": output[-1] if output else f"it ended with {done.returncode}"}


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--groups", type=int, default=2)
    p.add_argument("--kills", type=int, default=20)
    p.add_argument("--hangs", type=int, default=0, help="workers that are stopped for 3 to 6 s")
    p.add_argument("--lighthouse", type=int, default=0, help="kills of the lighthouse")
    p.add_argument(
        "--component",
        choices=("ddp", "hsdp", "diloco"),
        default="ddp",
        help="and its script, benchmarks/trial/COMPONENT.py",
    )
    p.add_argument("--workers", type=int, default=1, help="processes of a group")
    p.add_argument("--islands", default="", help="of diloco: processes of each group, as in 1,2,3")
    p.add_argument(
        "--what",
        choices=("worker", "rank0", "other", "group", "mixed"),
        default="worker",
        help="what is killed of a group: any worker, rank 0, another one, all, or one of these three by chance",
    )
    p.add_argument("--regardless", type=float, metavar="MEAN", help="seconds between two of --kills, on the average")
    p.add_argument("--kinds", default="kill,supervisor,lighthouse", help="of --regardless, as of torchft_x chaos")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--dir", type=Path, help="where run directory, dumps and output go (default: runs/kill-test-PID)")
    p.add_argument("--keep", action="store_true", help="keep that folder with every dump (gigabytes)")
    p.add_argument(
        "--reference",
        action="store_true",
        help="of hsdp: compare all losses and parameters with those of one process (as much disk as --keep)",
    )
    p.add_argument("--out", type=Path, help="write the figures as JSON here too")
    p.add_argument("script_args", nargs="*", metavar="-- ARG", help="for the training script")
    args = p.parse_args(argv)
    if args.groups < 2 or min(args.kills, args.hangs, args.lighthouse) < 0:
        p.error("--groups must be at least 2 (somebody has to survive), --kills, --hangs and --lighthouse at least 0")
    if not args.islands and args.workers < (2 if args.what in ("other", "mixed") else 1):
        p.error(f"--what {args.what} needs groups of --workers 2 or more")
    if args.reference and args.component != "hsdp":
        p.error("--reference needs --component hsdp: it computes what sharded groups do")

    folder = (args.dir or ROOT / "runs" / f"kill-test-{os.getpid()}").resolve()
    folder.mkdir(parents=True)
    if args.regardless:  # `torchx list` shall not show the job, and its commands find torchft_x from any directory
        os.environ[env.STATE_HOME] = str(folder / "state")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    began = time.monotonic()
    script_args = ["--steps", str(ENDLESS), "--log-every", "50", *(args.script_args or MODEL)]
    keep = args.keep or args.reference
    with Job(
        folder,
        args.groups,
        script_args,
        keep=keep,
        component=args.component,
        workers=args.workers,
        islands=args.islands,
        scheduler="local_ft" if args.regardless else "local_cwd",
    ) as job:
        findings: list[str] = []
        faults: list[Fault] = []
        if args.regardless:
            findings, complete = run_regardless(job, args)
        else:
            faults, complete = run(job, args)
        if complete:
            job.stop_soon(SHARED[args.component])
            job.watch(lambda _: False, TOGETHER)  # until the job ends
        ended = job.process.poll() is not None
        if args.regardless:
            figures = report_regardless(job, args, findings)
    reference = compare(job.dumps, args.workers, script_args) if args.reference and complete and ended else None
    if not args.regardless:
        figures = report(read_events(job.run_dir), check_params.read_dumps(job.dumps), faults, reference=reference)
    result = {
        "groups": args.groups,
        "exit_code": job.process.returncode,
        **figures,
        "seconds": round(time.monotonic() - began, 1),
        "seed": args.seed,
    }
    if args.regardless:
        print(json.dumps(result))
    else:
        show(result)
    text = json.dumps(result, indent=1)
    (folder / "result.json").write_text(text + "\n")
    if args.out:
        args.out.write_text(text + "\n")
    good = complete and ended and result["exit_code"] == 0 and not result["findings"]
    stalled = not args.regardless and (result["next_commit"]["worst"] or 0.0) > STALL
    if stalled:
        print(f"  A kill cost more than {STALL:g} s: the events in the folder below say what the survivors waited for.")
    if good and not stalled and not args.keep:
        shutil.rmtree(job.dumps if args.regardless else folder)
    if folder.exists():
        print(f"  everything is in {folder}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
