"""Check from outside that all replica groups held the same parameters at every committed step.

    python -m benchmarks.evidence.check_params DIR [--run RUN_DIR] [--flip-one-bit] [--consume]

DIR holds the dumps of ``benchmarks/trial/ddp.py --dump-params DIR``: one file per group, rank, attempt and committed
step, with a line of JSON (`digest`, `committed_in`, `t`, `healed`, ...) before the raw bytes of all parameters. This
program compares bytes: it knows nothing of tensors, and trusts no statement of the trainer. It checks that

1. each file's bytes have the digest in its header (else the file is damaged);
2. at every step, all groups and attempts wrote the same bytes for the same rank;
3. the steps have no gap: over all groups, and within each process unless it loaded a state.

Where all groups with the newest state were lost, training went on from an older one: a new lineage, which repeats step
numbers. The events of the run (``--run``) name the quorum with which each began. Each lineage is checked for itself,
and must go on from a step that the one before had reached. Without ``--run`` there is only one.

The exit code is 0 after one sentence if all holds, 1 after one sentence per finding, 2 if there is nothing to check.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

NAME = re.compile(r"g(?P<group>.+)-r(?P<rank>\d+)-a(?P<attempt>\d+)-s(?P<step>\d+)\.bin")
LEDGER = "checked.jsonl"  # with --consume: the reduced dumps whose files were deleted


@dataclass(frozen=True, order=True)
class Dump:
    """One file, reduced to the compared values."""

    group: str
    rank: int
    attempt: int
    step: int
    digest: str  # SHA-256 of the bytes, computed by this program
    header_digest: str
    size: int  # bytes of parameters
    committed_in: int = 0
    t: float = 0.0  # unix seconds of the commit
    healed: bool = False  # whether the process was new, or loaded a state, just before this step
    drawn: int = 0  # batches its process had drawn until then; 0: unknown

    @property
    def process(self) -> str:
        return f"group {self.group} rank {self.rank} attempt {self.attempt}"


def read_dump(path: Path, *, flip: bool = False) -> Dump:
    """Read a dump; with `flip`, as if one bit had differed. Raise ValueError if the file is not a whole dump."""
    match = NAME.fullmatch(path.name)
    if not match:
        raise ValueError(f"{path.name}: not a name like g0-r0-a0-s000001.bin")
    line, _, body = path.read_bytes().partition(b"\n")
    try:
        header = json.loads(line)
        header_digest = str(header["digest"])
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{path.name}: its first line is not a header with a digest") from None
    if flip:
        body = bytes([body[0] ^ 1]) + body[1:]
        header_digest = hashlib.sha256(body).hexdigest()  # a valid header, so that only the comparison can find it
    return Dump(
        group=match["group"],
        rank=int(match["rank"]),
        attempt=int(match["attempt"]),
        step=int(match["step"]),
        digest=hashlib.sha256(body).hexdigest(),
        header_digest=header_digest,
        size=len(body),
        committed_in=int(header.get("committed_in") or 0),
        t=float(header.get("t") or 0.0),
        healed=bool(header.get("healed")),
        drawn=int(header.get("drawn") or 0),
    )


def read_dumps(folder: Path, *, flip_one_bit: bool = False) -> list[Dump]:
    """Return all dumps of a folder, and those in its ledger. Raise ValueError naming a file that is no dump."""
    ledger = folder / LEDGER
    dumps = []
    if ledger.exists():
        dumps = [Dump(**json.loads(line)) for line in ledger.read_text().splitlines()]
    paths = sorted(folder.glob("*.bin"))
    victim = _last_shared(paths) if flip_one_bit else None
    dumps += [read_dump(path, flip=path == victim) for path in paths]
    return sorted(dumps)


def consume(folder: Path) -> None:
    """Add each dump to the ledger in its reduced form, and delete the file, so that a long run fits on the disk."""
    for path in sorted(folder.glob("*.bin")):
        dump = read_dump(path)
        with (folder / LEDGER).open("a") as f:
            f.write(json.dumps(asdict(dump)) + "\n")
        path.unlink()


def _last_shared(paths: list[Path]) -> Path:
    """Return the newest file whose step and rank another group has, too; elsewhere an altered bit has no effect."""
    by_step: dict[tuple[int, int], dict[str, Path]] = defaultdict(dict)
    for path in paths:
        if match := NAME.fullmatch(path.name):
            by_step[int(match["step"]), int(match["rank"])][match["group"]] = path
    shared = [key for key, groups in by_step.items() if len(groups) > 1]
    if not shared:
        raise ValueError("no step is shared by two groups: an altered bit could not be seen")
    return next(iter(by_step[max(shared)].values()))


def lineages(events: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the ids of the quorums with which a new lineage began, in order (quorum ids only ever increase)."""
    return sorted({int(e["quorum"]) for e in events if e.get("event") == "new_lineage" and e.get("quorum")})


def check(dumps: list[Dump], begun: Sequence[int] = ()) -> list[str]:
    """Return the findings, one sentence each; an empty list is a pass. `begun` holds the result of `lineages`."""
    findings, reached = _damaged(dumps), 0
    for number, of in sorted(_by_lineage(dumps, begun).items()):
        where = f"lineage {number}, " if begun else ""
        findings += [where + finding for finding in (*_differing(of), *_gaps(of))]
        first = min(d.step for d in of)
        if number and first > reached + 1:
            findings.append(f"{where}it begins with step {first}, but no lineage before it has step {first - 1}")
        reached = max(reached, *(d.step for d in of))
    return findings


def _by_lineage(dumps: Iterable[Dump], begun: Sequence[int]) -> dict[int, list[Dump]]:
    found: dict[int, list[Dump]] = defaultdict(list)
    for d in dumps:
        found[bisect_right(begun, d.committed_in)].append(d)
    return found


def _damaged(dumps: list[Dump]) -> list[str]:
    return [
        f"{d.process}, step {d.step}: the file is damaged: its bytes don't have the digest of its header"
        for d in dumps
        if d.digest != d.header_digest
    ]


def _differing(dumps: list[Dump]) -> list[str]:
    at: dict[tuple[int, int], list[Dump]] = defaultdict(list)
    for d in dumps:
        at[d.step, d.rank].append(d)
    findings = []
    for (step, rank), same in sorted(at.items()):
        if len({d.digest for d in same}) > 1:
            who = ", ".join(
                f"group {d.group} attempt {d.attempt} (quorum {d.committed_in}) {d.digest[:8]}" for d in same
            )
            findings.append(f"step {step}, rank {rank}: the parameters differ: {who}")
    return findings


def _gaps(dumps: list[Dump]) -> list[str]:
    findings = []
    steps = sorted({d.step for d in dumps})
    for before, after in pairwise(steps):
        if after != before + 1:
            findings.append(f"no group has step {before + 1}: the steps jump from {before} to {after}")
    processes: dict[str, list[Dump]] = defaultdict(list)
    for d in dumps:
        processes[d.process].append(d)
    for process, made in processes.items():
        made.sort(key=lambda d: d.step)
        for one, two in pairwise(made):
            if two.step != one.step + 1 and not two.healed:
                findings.append(f"{process}: its steps jump from {one.step} to {two.step} without a copied state")
    return findings


def shared_steps(dumps: list[Dump], begun: Sequence[int] = ()) -> int:
    """Return the number of steps that at least two groups committed, so that they could be compared."""
    at: dict[tuple[int, int], set[str]] = defaultdict(set)
    for number, of in _by_lineage(dumps, begun).items():
        for d in of:
            at[number, d.step].add(d.group)
    return sum(len(groups) > 1 for groups in at.values())


@dataclass(frozen=True)
class Lost:
    """Batches that a surviving process drew and no group committed: the cost of dropped steps.

    The batches of killed processes are unknown.
    """

    group: str
    rank: int
    attempt: int
    step: int  # last committed step before the loss
    number: int  # number of batches
    begin: float  # unix seconds of the commit before the loss
    end: float  # unix seconds of the commit after the loss


def lost(dumps: list[Dump]) -> list[Lost]:
    """Return the lost batches, in the order of their steps."""
    processes: dict[str, list[Dump]] = defaultdict(list)
    for d in dumps:
        if d.drawn:
            processes[d.process].append(d)
    found = [
        Lost(one.group, one.rank, one.attempt, one.step, two.drawn - one.drawn - 1, one.t, two.t)
        for made in processes.values()
        for one, two in pairwise(sorted(made, key=lambda d: d.step))
        if two.drawn - one.drawn > 1
    ]
    return sorted(found, key=lambda x: (x.step, x.group, x.rank))


def table(dumps: list[Dump]) -> str:
    attempts: dict[tuple[str, int, int], list[Dump]] = defaultdict(list)
    for d in dumps:
        attempts[d.group, d.rank, d.attempt].append(d)
    lines = [f"{'group':>6} {'rank':>5} {'attempt':>8} {'first step':>11} {'last step':>10} {'dumps':>6}"]
    for (group, rank, attempt), made in sorted(attempts.items()):
        steps = [d.step for d in made]
        lines.append(f"{group:>6} {rank:>5} {attempt:>8} {min(steps):>11} {max(steps):>10} {len(steps):>6}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("folder", metavar="DIR", type=Path)
    p.add_argument("--run", type=Path, metavar="RUN_DIR", help="of the run, whose events say where a new lineage began")
    p.add_argument("--consume", action="store_true", help=f"delete what was read, after noting it in DIR/{LEDGER}")
    p.add_argument("--flip-one-bit", action="store_true", help="alter one bit of one dump as it is read: must fail")
    args = p.parse_args(argv)
    if args.consume and args.flip_one_bit:
        p.error("--flip-one-bit would put a false line into the ledger of --consume")
    try:
        if args.consume:
            consume(args.folder)
        dumps = read_dumps(args.folder, flip_one_bit=args.flip_one_bit)
    except (ValueError, OSError) as e:
        print(f"check_params.py: {e}", file=sys.stderr)
        return 2
    if not dumps:
        print(
            f"check_params.py: {args.folder} holds no dumps; run benchmarks/trial/ddp.py with --dump-params.",
            file=sys.stderr,
        )
        return 2
    print(table(dumps))
    begun: list[int] = []
    if args.run is not None:
        from torchft_x.observe.events import read_events  # only with --run: the checks need nothing but the files

        if not (args.run / "events").is_dir():
            print(f"check_params.py: {args.run} is no run directory: it has no events.", file=sys.stderr)
            return 2
        begun = lineages(read_events(args.run))
    findings = check(dumps, begun)
    for finding in findings:
        print(f"FAILED: {finding}")
    if findings:
        return 1
    megabytes = sum(d.size for d in dumps) / 1e6
    print(
        f"ok: {len(dumps)} dumps ({megabytes:,.0f} MB), steps {min(d.step for d in dumps)} to "
        f"{max(d.step for d in dumps)} without a gap, bit-equal at all {shared_steps(dumps, begun)} steps shared by groups"
        + (f", in {len(begun) + 1} lineages" if begun else "")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
