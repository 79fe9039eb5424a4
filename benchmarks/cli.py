"""``./scripts/bench [NAME ...]``: run benchmarks one after the other, and save their results."""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import draw, libraries, machine, results
from benchmarks.bench import Bench, Measured
from benchmarks.fanout import run_fanout
from benchmarks.goodput import GOALS, run_goodput
from benchmarks.heal import run_heal
from benchmarks.kill import run_hang, run_kill
from benchmarks.late import run_late
from benchmarks.lateness import KINDS
from benchmarks.lighthouse import run_lighthouse
from benchmarks.outage import run_outage
from benchmarks.processes import GaveUp
from benchmarks.rejoin import run_longest, run_rejoin
from benchmarks.steps import run_empty, run_overhead, run_sharded
from benchmarks.stripes import run_stripes

PAIRS = 30


@dataclass(frozen=True)
class Kind:
    """A benchmark, and its default number of pairs."""

    run: Callable[[Bench], list[Measured]]
    words: str
    pairs: int = PAIRS
    peer_pairs: int = PAIRS
    """Pairs of the peer: fewer where each takes minutes."""
    main_pairs: int = 0
    """Pairs in `--main`, which makes the README's table in twenty minutes; 0: `--main` leaves this benchmark out."""
    main_peer_pairs: int = PAIRS
    """Pairs of the peer in `--main`."""
    main_settings: dict[str, Any] = field(default_factory=dict)
    """Options of this benchmark in `--main`."""


BENCHMARKS = {
    "empty": Kind(run_empty, "a step without gradients", main_pairs=5),
    "ddp": Kind(run_overhead, "a DDP step against torch's own", main_pairs=5),
    "hsdp": Kind(
        run_sharded,
        "a step of a sharded model, 2 groups x 2 ranks, against FSDP2 and plain all-reduces",
        main_pairs=4,
    ),
    "lighthouse": Kind(run_lighthouse, "the lighthouse's memory and its start", main_pairs=5),
    "fanout": Kind(
        run_fanout,
        "a quorum change with up to 1000 simulated groups",
        main_pairs=5,
        main_settings={"groups": [2, 8, 512]},
    ),
    "heal": Kind(run_heal, "1 GB of state against raw TCP", main_pairs=3),
    "stripes": Kind(run_stripes, "a state from 1, 2 and 3 sources on links of 1 Gbit/s", pairs=6),
    "kill": Kind(run_kill, "kill -9 of one of 2 and of 3 groups", main_pairs=3),
    "rejoin": Kind(run_rejoin, "from a kill until all train together again", main_pairs=3),
    "longest": Kind(run_longest, "the survivor's longest step while a group rejoins"),
    "hang": Kind(run_hang, "SIGSTOP in a collective", peer_pairs=6, main_pairs=3, main_peer_pairs=1),
    "late": Kind(
        run_late, "a group that hangs, or is slow, in one of seven ways, or all now and then", pairs=5, peer_pairs=5
    ),
    "outage": Kind(
        run_outage, "the lighthouse is killed and comes back", peer_pairs=6, main_pairs=3, main_peer_pairs=1
    ),
    "goodput": Kind(
        run_goodput,
        "4 groups under Poisson kills",
        pairs=6,
        peer_pairs=6,
        main_pairs=2,
        main_settings={"mtbf": [5.0], "seconds": 30.0},
    ),
}


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="./scripts/bench", description=__doc__, allow_abbrev=False)
    words = "; ".join(f"{name}: {kind.words}" for name, kind in BENCHMARKS.items())
    p.add_argument("name", nargs="*", metavar="NAME", help=f"{words}. Default: all")
    p.add_argument("--pairs", type=int, help=f"interleaved pairs (default {PAIRS}; 6 of goodput)")
    p.add_argument("--peer-pairs", type=int, help="of the peer, if fewer (default 6 of hang and outage)")
    p.add_argument("--only", choices=("ours", "peer"), help="leave the other out")
    p.add_argument(
        "--main",
        action="store_true",
        help="the README's table: fewer benchmarks and pairs, 20 minutes on two quiet cores",
    )
    p.add_argument("--quick", action="store_true", help="smoke: one small pair of everything")
    p.add_argument("--away", type=float, help="outage: seconds without a lighthouse (default 3)")
    p.add_argument(
        "--seconds",
        type=float,
        help="goodput: of a run (default 60); late: of one in which all are late now and then (default 600)",
    )
    p.add_argument(
        "--mtbf", type=float, nargs="+", choices=GOALS, help="goodput: mean seconds between kills (default: both)"
    )
    p.add_argument("--groups", type=int, nargs="+", help="fanout: sizes (default 2 8 64 512 1000)")
    p.add_argument("--kinds", choices=KINDS, nargs="+", help="late: which (default all)")
    p.add_argument("--megabytes", type=int, help="heal: MiB of state (default 1024)")
    p.add_argument("--out", type=Path, default=Path("runs/bench.json"), help="default %(default)s; SVGs lie beside it")
    p.add_argument("--add", action="store_true", help="keep the other benchmarks that are in that file")
    p.add_argument("--show", action="store_true", help="run nothing: print and draw what is in the file")
    p.add_argument("--markdown", action="store_true", help="with --show: print the table for a page, and no more")
    return p


def main(argv: list[str] | None = None) -> int:
    p = parser()
    args = p.parse_args(argv)
    unknown = [x for x in args.name if x not in BENCHMARKS]
    if unknown:
        p.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    if args.main and (args.name or args.quick):
        p.error("--main chooses the benchmarks itself, and goes without --quick")
    for name in ("pairs", "peer_pairs"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            p.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.show:
        if not args.out.exists():
            p.error(f"there is no {args.out}; run a benchmark first, or name the file with --out")
        data = results.read(args.out)
        print(results.markdown(data)) if args.markdown else show(data, args.out)
        return 0
    if args.markdown:
        p.error("--markdown goes with --show")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # __main__.py then kills all processes of the jobs
    _many_files()
    return run(args)


def run(args: argparse.Namespace) -> int:
    ours, peer = libraries.ours(), libraries.find_peer()
    if args.only == "ours":
        peer = "the peer was left out (--only ours)"
    if isinstance(peer, str):
        print(f"{peer}: only ours is measured.")
    began = time.monotonic()
    old = results.read(args.out)["benchmarks"] if args.add and args.out.exists() else {}
    data: dict[str, Any] = {
        "machine": machine.machine(),
        "versions": machine.versions(ours, peer),
        "began": machine.now(),
        "load_before": machine.load(),
        "arguments": sys.argv[1:],
        "benchmarks": old,
    }
    code = 0
    names = [name for name, kind in BENCHMARKS.items() if kind.main_pairs] if args.main else args.name or BENCHMARKS
    for name in names:
        code |= one(name, args, None if args.only == "peer" else ours, peer, data)
        data |= {"seconds": round(time.monotonic() - began, 1), "load_after": machine.load()}
        results.write(args.out, data)  # after each benchmark, so that an interrupted run leaves its results
    show(data, args.out)
    return code


def one(
    name: str,
    args: argparse.Namespace,
    ours: libraries.Library | None,
    peer: libraries.Library | str,
    data: dict[str, Any],
) -> int:
    """Run a benchmark, put its results into `data`, and return the exit code: 1 if it failed."""
    kind = BENCHMARKS[name]
    pairs = args.pairs or (1 if args.quick else kind.main_pairs if args.main else kind.pairs)
    peer_pairs = args.peer_pairs or min(pairs, kind.main_peer_pairs if args.main else kind.peer_pairs)
    settings = {k: getattr(args, k) for k in ("away", "seconds", "mtbf", "groups", "kinds", "megabytes")}
    settings |= {k: v for k, v in kind.main_settings.items() if args.main and settings[k] is None}
    bench = Bench(ours, peer, pairs, peer_pairs, quick=args.quick, settings=settings)
    before, began = machine.load(), time.monotonic()
    print(f"{name}: {kind.words}, {pairs} pairs; load {before}", flush=True)
    entry: dict[str, Any] = {
        "words": kind.words,
        "at": machine.now(),
        "commit": machine.commit(),
        "quick": args.quick,
        "load_before": before,
        "rows": [],
    }
    try:
        measured = kind.run(bench)
        entry["rows"] = [results.row_of(m) for m in measured]
        entry["timelines"] = [m.timeline for m in measured if m.timeline]
    except Exception as e:  # the following benchmarks run nevertheless
        if not isinstance(e, GaveUp):
            traceback.print_exc()
        entry["failed"] = str(e) or repr(e)
        print(f"  {name} could not be measured: {e}", flush=True)
    entry |= {"seconds": round(time.monotonic() - began, 1), "load_after": machine.load()}
    data["benchmarks"][name] = entry
    if entry["rows"]:
        print(results.table(entry["rows"]) + "\n", flush=True)
    return int("failed" in entry)


def show(data: dict[str, Any], out: Path) -> None:
    """Print the table and the notes of all benchmarks in `data`, and draw its pictures beside `out`."""
    where = data["machine"]
    print(f"\n{where['cpu']}, {where['cores']} cores, {where['memory_gb']} GB; {data['versions']}; {data['began']}")
    print(f"load {data['load_before']} before, {data.get('load_after')} after\n")
    print(results.table(results.all_rows(data)))
    for line in results.notes(data):
        print(f"  {line}")
    for path in draw.draw_all(data, out):
        print(f"drawn: {path}")
    print(f"written: {out}")


def _many_files() -> None:
    """Raise the limit of open files: a thousand simulated groups need as many connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
