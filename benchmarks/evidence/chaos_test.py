"""Strike a real job of `local_ft` with random faults, regardless of its state, and check the outcome from outside.

    python -m benchmarks.evidence.chaos_test --seeds 1,2,3 --out docs/bench/chaos-50.json
    python -m benchmarks.evidence.chaos_test --groups 2 --count 10 --kinds kill,hang

For each seed a job is started as by a user. ``torchft_x chaos`` strikes it with 50 Poisson kills, 5 s apart on average,
of workers, supervisors and the lighthouse. (In contrast, kill_test.py waits until the job is whole again.) Then

1. all groups must train together again, and the job must end by itself with 0 at the step of its --until file;
2. check_params.py compares all dumped parameters;
3. ``torchft_x report`` must name every fault;
4. no process may be left.

The exit code is 0 only if all of that holds for all seeds. Arguments after ``--`` go to the training script, in place
of those in kill_test.MODEL.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.evidence import check_params
from benchmarks.evidence.kill_test import ENDLESS, MODEL, ROOT, TOGETHER, Job
from tests.events import training_together
from torchft_x import env
from torchft_x.observe.events import read_events
from torchft_x.observe.processes import job_processes
from torchft_x.observe.run import read_run

START = 180.0  # seconds until all groups train, the first time
BACK = 420.0  # seconds until all train after the last fault; groups that may hold a newer state are awaited for 300 s
FAULT = 60.0  # longest delay of one fault in seconds, while there is no victim
GONE = 20.0  # seconds for the last processes to go


def one(args: argparse.Namespace, seed: int, folder: Path) -> dict[str, Any]:
    """Run one job under one seed, and return its results as JSON holds them."""
    began, load = time.monotonic(), os.getloadavg()[0]
    script = ["--steps", str(ENDLESS), "--log-every", "50", *(args.script_args or MODEL)]
    problems: list[str] = []
    with Job(folder, args.groups, script, keep=args.keep, scheduler="local_ft") as job:
        if job.watch(lambda events: training_together(events, args.groups), START):
            problems += strike(job, args, seed, folder)
            settled = time.time()
            together = job.watch(
                lambda events: training_together([e for e in events if float(e["t"]) > settled], args.groups), BACK
            )
            if together:
                job.stop_soon()
                job.watch(lambda _: False, TOGETHER)  # until the job ends
            else:
                problems.append(f"not all groups trained together within {BACK:.0f} s of the last fault")
        else:
            problems.append("the groups did not begin to train")
        ended = job.process.poll() is not None
        deadline = time.monotonic() + GONE
        while ended and job_processes(job.run_dir) and time.monotonic() < deadline:
            time.sleep(0.1)
        left = len(job_processes(job.run_dir)) if ended else 0
    code = job.process.returncode
    if not ended:
        problems.append("the job did not end by itself")
    elif code:
        problems.append(f"the job ended with {code}: {last_words(job.output)}")
    if left:
        problems.append(f"{left} processes are left")
    return {**evaluate(job, args, problems), "seed": seed, "exit_code": code,
            "seconds": round(time.monotonic() - began, 1), "load": round(load, 1)}  # fmt: skip


def strike(job: Job, args: argparse.Namespace, seed: int, folder: Path) -> list[str]:
    """Do all faults, and return a sentence if ``torchft_x chaos`` failed."""
    words = ["--mean", str(args.mean), "--count", str(args.count), "--seed", str(seed), "--kinds", args.kinds]
    with (folder / "chaos.log").open("wb") as out:
        chaos = subprocess.Popen(
            [sys.executable, "-m", "torchft_x", "chaos", str(job.run_dir), *words],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            job.watch(lambda _: chaos.poll() is not None, args.count * (args.mean * 3 + FAULT))
            chaos.wait(FAULT + 10.0)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if chaos.poll() is None:
                chaos.terminate()  # it then continues the processes that it has stopped
                chaos.wait(10.0)
    return [f"chaos ended with {chaos.returncode}: {last_words(folder / 'chaos.log')}"] if chaos.returncode else []


def evaluate(job: Job, args: argparse.Namespace, problems: list[str]) -> dict[str, Any]:
    """Check parameters, lineages and the report, add findings to `problems`, and return the figures."""
    events = read_events(job.run_dir)
    begun = check_params.lineages(events)
    dumps = check_params.read_dumps(job.dumps) if job.dumps.is_dir() else []
    problems += check_params.check(dumps, begun) if dumps else ["no dumps were written"]
    run = read_run(job.run_dir)
    named = {loss.by.number for loss in run.losses if loss.by is not None} if run is not None else set()
    missing = sorted(set(range(1, args.count + 1)) - named)
    if missing:
        problems.append(f"the report does not name the faults {missing}")
    reported = subprocess.run(
        [sys.executable, "-m", "torchft_x", "report", str(job.run_dir)], cwd=ROOT, capture_output=True, text=True
    )
    (job.run_dir.parent / "report.txt").write_text(reported.stdout + reported.stderr)
    if reported.returncode:
        problems.append(f"torchft_x report ended with {reported.returncode}: {reported.stderr.strip()[-300:]}")
    return {
        "groups": args.groups,
        "mean": args.mean,
        "faults": dict(Counter(str(e.get("kind")) for e in events if e.get("event") == "fault")),
        "named": len(named),
        "dumps": len(dumps),
        "last_step": max((d.step for d in dumps), default=0),
        "shared_steps": check_params.shared_steps(dumps, begun),
        "steps_lost": [int(e.get("steps") or 0) for e in events if e.get("event") == "new_lineage"],
        "stood": round(run.stood, 1) if run is not None else None,
        "longest_stood": round(max((loss.stood for loss in run.losses), default=0.0), 1) if run is not None else None,
        "trained": round(run.trained[1] - run.trained[0], 1) if run is not None and run.trained is not None else None,
        "problems": problems,
    }


def last_words(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "it said nothing"


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--groups", type=int, default=4)
    p.add_argument("--count", type=int, default=50, help="faults")
    p.add_argument("--mean", type=float, default=5.0, help="seconds between two of them, on the average")
    p.add_argument("--kinds", default="kill,supervisor,lighthouse", help="as of torchft_x chaos")
    p.add_argument("--seeds", default="1", help="one job for each: 1,2,3")
    p.add_argument("--dir", type=Path, help="where everything goes (default: runs/chaos-test-PID)")
    p.add_argument(
        "--keep", action="store_true", help="keep all of it with every dump (gigabytes), not only what failed"
    )
    p.add_argument("--out", type=Path, help="write the figures as JSON here too")
    p.add_argument("script_args", nargs="*", metavar="-- ARG", help="for the training script")
    args = p.parse_args(argv)
    try:
        seeds = [int(seed) for seed in args.seeds.split(",")]
    except ValueError:
        p.error(f"--seeds {args.seeds}: numbers with commas, as in 1,2,3")
    if args.groups < 1 or args.count < 1 or not args.mean > 0:
        p.error("--groups and --count must be at least 1, --mean more than 0")
    top = (args.dir or ROOT / "runs" / f"chaos-test-{os.getpid()}").resolve()
    # The user's `torchx list` shall not show these jobs, and their commands find torchft_x from any directory.
    os.environ[env.STATE_HOME] = str(top / "state")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    results = []
    for seed in seeds:
        folder = top / f"seed-{seed}"
        folder.mkdir(parents=True)
        result = one(args, seed, folder)
        results.append(result)
        (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
        if args.out:
            args.out.write_text(json.dumps(results, indent=1) + "\n")
        print(json.dumps(result), flush=True)
        if result["problems"]:
            print(f"  FAILED; everything is in {folder}", flush=True)
        elif not args.keep:
            shutil.rmtree(folder / "dumps", ignore_errors=True)
    failed = sum(bool(result["problems"]) for result in results)
    print(f"{len(results)} runs of {args.count} faults, {failed} failed; reports and events are in {top}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
