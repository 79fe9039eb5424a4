"""Command lines about existing runs: `report`, `chaos`, `cancel`, `scale` and `clean`."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchft_x import env
from torchft_x.arguments import Parser
from torchft_x.atomic_file import replace_file
from torchft_x.errors import ConfigError, TorchftXError
from torchft_x.launch.kubernetes.handle import is_handle
from torchft_x.launch.slurm.store import is_slurm_run
from torchft_x.observe.console import harmless, plural
from torchft_x.observe.processes import job_processes
from torchft_x.observe.run_dirs import RUNS, is_run, newest_run, runs_below, written
from torchft_x.units import amount

if TYPE_CHECKING:
    from torchft_x.launch.chaos.schedule import Planned, Targets
    from torchft_x.launch.kubernetes.remote import Remote

Event = dict[str, Any]

_BY_SLURM = (
    " On Slurm, do this on the node of a group (`squeue --me`), or strike a part from here by Slurm's means: `scancel "
    "--signal=KILL JOB` (31_2) kills its processes."
)
_JOB = "of local_ft or slurm_ft: its run directory; of kubernetes_ft: kubernetes_ft://NAMESPACE/APP"
DAYS = 7.0
_QUIET = 3600.0  # seconds without an event after which a run without a recorded end counts as ended on every host


def _run_dir(given: Path | None) -> Path:
    """Return the named run directory, else the newest below ./runs. Raise `ConfigError` if there is none."""
    found = given if given is not None else newest_run()
    if found is None:
        raise ConfigError(f"there is no run directory in ./{RUNS}; name one, as `torchx run` prints it first.")
    if not is_run(found):
        raise ConfigError(f"{harmless(found)} is no run directory: there is no folder events in it.")
    return found


def report(argv: list[str]) -> int:
    """Run ``torchft_x report`` and return the exit code, 1 if the run has written nothing. Raise `TorchftXError`."""
    from torchft_x.observe.drawing import as_json, page, summary
    from torchft_x.observe.run import read_run

    parser = Parser(prog="torchft_x report", description="Say what a run did, and what its failures cost.")
    parser.add_argument(
        "run", nargs="?", metavar="RUN_DIR|LOGS|JOB",
        help=f"a run directory, a file of collected logs, or a job of kubernetes_ft; default: the newest in ./{RUNS}",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FILE.html", help="default: RUN_DIR/report.html, else ./NAME.html")
    parser.add_argument("--against", metavar="OTHER_RUN", help="compare with this run")
    parser.add_argument("--json", action="store_true", help="print the whole run as JSON, and write no file")
    args = parser.parse_args(argv)
    runs = []
    with tempfile.TemporaryDirectory(prefix="torchft_x-report-") as scratch:
        given = [args.run, *([args.against] if args.against is not None else [])]
        sources = [_source(word, Path(scratch, str(i))) for i, word in enumerate(given)]
        for folder, _ in sources:
            run = read_run(folder)
            if run is None:
                print(f"torchft_x report: nothing is written in {harmless(folder / 'events')} yet.", file=sys.stderr)
                return 1
            runs.append(run)
    run, other, now = runs[0], runs[1] if len(runs) > 1 else None, time.time()
    if args.json:
        print(json.dumps(as_json(run, now)))
        return 0
    out = args.out or sources[0][1]
    try:
        replace_file(out, page(run, now, other))
    except OSError as e:
        print(summary(run, now, other))
        print(
            f"torchft_x report: {harmless(out)} can't be written ({e.strerror}); name a file with --out.",
            file=sys.stderr,
        )
        return 1
    print(f"{summary(run, now, other)}\n\nIn full: {harmless(out)}")
    return 0


def _source(word: str | None, scratch: Path) -> tuple[Path, Path]:
    """Return the folder with the run's events and the path of the report. Raise `ConfigError` or `ClusterError`."""
    from torchft_x.observe.run.collected import events_in, write_run

    if word is not None and is_handle(word):
        from torchft_x.launch.kubernetes.remote import Remote

        remote = Remote(word)
        events: Iterable[tuple[str, Event]] = remote.events()
        name, none = remote.app, f"the pods of {remote.app} print no events: submit the job with -cfg events=True."
    elif word is not None and Path(word).is_file():
        try:
            with Path(word).open(encoding="utf-8", errors="replace") as lines:
                events = [("", event) for event in events_in(lines)]
        except OSError as e:
            raise ConfigError(f"{harmless(word)} can't be read ({e.strerror}).") from None
        name, none = Path(word).stem, f"there are no events in {harmless(word)}; docs/events.md says who prints them."
    else:
        run_dir = _run_dir(None if word is None else Path(word))
        return run_dir, run_dir / "report.html"
    folder = scratch / name
    if not write_run(events, folder):
        raise ConfigError(none)
    return folder, Path(f"{name}.html")


def chaos(argv: list[str]) -> int:
    """Run ``torchft_x chaos`` and return the exit code, 1 if the job ended before all faults were done.

    Raise `TorchftXError`.
    """
    from torchft_x.launch.chaos import runner, schedule

    parser = Parser(
        prog="torchft_x chaos",
        description="Kill, stop and drain parts of a job of this host or a cluster: docs/operate.md.",
    )
    parser.add_argument(
        "run", nargs="?", metavar="RUN_DIR|JOB",
        help=f"a run directory, or a job of kubernetes_ft; default: the newest in ./{RUNS}",
    )  # fmt: skip
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--at", metavar="LIST", help="SECONDS:KIND[:GROUP[:SECONDS OF A STOP OR HANG]], with commas")
    which.add_argument(
        "--mean", type=float, metavar="SECONDS", help="instead, a fault each so many seconds on the average"
    )
    parser.add_argument("--count", type=int, help="with --mean; default: until the job ends")
    parser.add_argument("--kinds", default="kill", help=f"with --mean: of {', '.join(schedule.KINDS)}; default: kill")
    parser.add_argument("--seed", type=int, default=0, help="what is left to chance depends on it alone")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    args = parser.parse_args(argv)
    run, run_dir, what, keep = _targets(args.run)
    listed = schedule.listed(args.at, args.seed) if args.at is not None else None
    kinds = args.kinds.split(",") if listed is None else [planned.kind for planned in listed]
    planned: Iterable[Planned] = listed or schedule.poisson(args.mean, args.count, kinds, args.seed)
    if run_dir is None:
        from torchft_x.launch.kubernetes.remote import check_faults

        check_faults(kinds)
    targets = run.living()
    if not targets:
        where = "on this host: it has ended, or runs elsewhere" if run_dir is not None else "now"
        more = _BY_SLURM if run_dir is not None and is_slurm_run(run_dir) else ""
        raise ConfigError(f"no process of {what} lives {where}.{more}")
    print(f"{what}: {', '.join(harmless(t) for t in targets)}", flush=True)
    if args.dry_run:
        print("\n".join(runner.describe(itertools.islice(planned, 1000), targets)))
        return 0
    endless = args.at is None and args.count is None
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that stopped processes are resumed on SIGTERM too
    try:
        with runner.Chaos(run, run_dir, lambda line: print(line, flush=True), keep) as made:
            made.run(planned)
    except runner.ChaosEnded as e:
        print(f"torchft_x chaos: {e}", file=sys.stderr)
        return 0 if endless else 1
    except KeyboardInterrupt:
        return 130
    print(f"{plural(made.done, 'fault')} done; `torchft_x report {what}` says what each cost.")
    return 0


def _targets(word: str | None) -> tuple[Targets, Path | None, str, Callable[[Event], None] | None]:
    """Return a run's `Targets`, its directory if local, name, and fault recorder if remote. Raise `ConfigError`."""
    if word is not None and is_handle(word):
        from torchft_x.launch.kubernetes.remote import Pods, Remote

        remote = Remote(word, env.read_token())
        return Pods(remote), None, harmless(word), _keeper(remote)
    from torchft_x.launch.chaos.local import LocalRun

    run_dir = _run_dir(None if word is None else Path(word))
    return LocalRun(run_dir), run_dir, harmless(run_dir), None


def _keeper(remote: Remote) -> Callable[[Event], None]:
    """Return a function that records faults in the job's anchor. It reports a failure to do so, and chaos goes on."""

    def keep(fault: Event) -> None:
        try:
            remote.keep(fault)
        except TorchftXError as e:
            print(f"torchft_x chaos: no report will name fault {fault['number']}: {e}", file=sys.stderr, flush=True)

    return keep


def cancel(argv: list[str]) -> int:
    """Run ``torchft_x cancel`` and return the exit code. Raise `TorchftXError`."""
    parser = Parser(prog="torchft_x cancel", description="End a job, in good order.")
    parser.add_argument("job", metavar="RUN_DIR|JOB", help=_JOB)
    job = parser.parse_args(argv).job
    print(_commands(job).end(job))
    return 0


def scale(argv: list[str]) -> int:
    """Run ``torchft_x scale`` and return the exit code. Raise `TorchftXError`."""
    parser = Parser(prog="torchft_x scale", description="Give a running job more replica groups, or fewer.")
    parser.add_argument("job", metavar="RUN_DIR|JOB", help=_JOB)
    parser.add_argument("--replicas", type=int, required=True, help="groups that it shall have")
    args = parser.parse_args(argv)
    app, before = _commands(args.job).resize(args.job, args.replicas)
    print(f"The job {app} has {args.replicas} groups now; it had {before}.")
    return 0


def _commands(job: str) -> Any:
    if is_handle(job):
        return importlib.import_module("torchft_x.launch.kubernetes.commands")
    return importlib.import_module(f"torchft_x.launch.{'slurm' if is_slurm_run(job) else 'keeper'}.commands")


def clean(argv: list[str]) -> int:
    """Run ``torchft_x clean`` and return the exit code, 1 if a directory could not be removed, or the person refused."""
    parser = Parser(
        prog="torchft_x clean", description="Remove the directories of old runs; never of one that goes on."
    )
    parser.add_argument("folder", type=Path, nargs="?", default=RUNS, help=f"where they are; default: ./{RUNS}")
    parser.add_argument("--days", type=float, default=DAYS, help=f"without an event for so long; default: {DAYS:g}")
    parser.add_argument("--yes", action="store_true", help="don't ask")
    args = parser.parse_args(argv)
    if not args.folder.is_dir():
        print(f"torchft_x clean: there is no directory {harmless(args.folder)}.", file=sys.stderr)
        return 2
    found = old_runs(args.folder, args.days, time.time())
    for old in found:
        print(
            f"{harmless(old.path)}: {amount(old.bytes)}, {old.days:.1f} days old"
            + (f", stays: {old.stays}" if old.stays else "")
        )
    gone = [old for old in found if not old.stays]
    if not gone:
        print(f"Nothing in {harmless(args.folder)} is to be removed.")
        return 0
    what = f"{plural(len(gone), 'run')}, {amount(sum(old.bytes for old in gone))}"
    if not args.yes:
        print(f"Remove {what}? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("Nothing was removed.")
            return 1
    failed = 0
    for old in gone:
        try:
            shutil.rmtree(old.path)
        except OSError as e:
            failed += 1
            print(f"torchft_x clean: {harmless(old.path, 400)} can't be removed ({e.strerror}).", file=sys.stderr)
    print(f"Removed {len(gone) - failed} of {what}.")
    return 1 if failed else 0


@dataclass(frozen=True)
class OldRun:
    path: Path
    days: float  # days since its newest event
    bytes: int
    stays: str  # reason why it must stay; '' if it may be removed


def old_runs(folder: Path, days: float, now: float) -> list[OldRun]:
    """Return the runs in `folder` without an event for that many days, the oldest first. `now` is in Unix seconds."""
    found = []
    for path in runs_below(folder):
        age = max(0.0, now - written(path))
        if age >= days * 86400:
            found.append(OldRun(path, age / 86400, _size(path), _stays(path, age)))
    return found


def _stays(path: Path, age: float) -> str:
    if path.stat().st_uid != os.geteuid():
        return "it is another user's"
    if job_processes(path):
        return "it goes on"
    if age < _QUIET:
        from torchft_x.observe.run import read_run

        run = read_run(path)
        if run is None or run.code is None:
            return "its end was not written, and it may go on on another host"
    return ""


def _size(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except OSError:
                continue
    return total
