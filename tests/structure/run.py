"""Measure the house: ``./scripts/structure``.

    ./scripts/structure                          this checkout: what its source says, and what a step and a join visit
    ./scripts/structure --against main           beside an older commit's, from a temporary copy
    ./scripts/structure --root ../other --json figures.json
    ./scripts/structure --no-run                 only what the source says
    ./scripts/structure --visits                 the files that a step visits, in the order of their first visit
    ./scripts/structure --diagrams               draw docs/diagrams anew

What the rows mean is in docs/structure.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.structure import diagrams, table

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def commit(name: str) -> Iterator[Path]:
    """The files of a commit of this repository, in a temporary folder."""
    done = subprocess.run(["git", "archive", name], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"structure: {name} can't be read from git: {done.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=done.stdout, check=True)
        yield Path(folder)


def visits(figures: dict[str, Any]) -> list[str]:
    """The files of the step's training thread: all calls in each, and from which files it is called how often."""
    found = []
    for number, row in enumerate(next(iter(figures["step"]["visits"].values())), 1):
        callers = [f"{caller} {n}" for caller, n in row["from"].items()]
        callers += [f"outside {row['entries']}"] if row["entries"] else []
        found.append(f"{number:3} {row['file']:40} {row['calls']:4}  from {', '.join(callers)}")
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/structure", description="Measure the house, or draw it.")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    parser.add_argument("--against", metavar="COMMIT", help="a commit of this repository, in a column of its own")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures there, too")
    parser.add_argument("--no-run", action="store_true", help="don't measure a step and a join (half a minute each)")
    parser.add_argument("--visits", action="store_true", help="list the files that a step visits, too")
    parser.add_argument("--diagrams", action="store_true", help="draw docs/diagrams anew, and nothing else")
    args = parser.parse_args(argv)
    if args.diagrams:
        for path in diagrams.write(ROOT):
            print(path.relative_to(ROOT))
        return 0
    if args.no_run and args.visits:
        parser.error("--visits needs a run.")
    with contextlib.ExitStack() as stack:
        root = args.root.resolve()
        roots = [("here" if root == ROOT else root.name, root)]
        if args.against:
            roots.insert(0, (args.against, stack.enter_context(commit(args.against))))
        columns = []
        for name, root in roots:
            if not (root / "torchft_x").is_dir():
                parser.error(f"{root} is no checkout of torchft_x.")
            columns.append((name, table.counted(root) | ({} if args.no_run else table.measured(root))))
    print("\n".join(table.lines(columns)))
    if args.visits:
        print("\n" + "\n".join(visits(columns[-1][1])))
    if args.json:
        args.json.write_text(json.dumps(dict(columns), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
