"""Run torchft's own test files against torchft_x under torchft's name, and against torchft itself.

    python -m tests.extended.compat.peer_suite [--peer] [FILE...]     # runs all files or these; --peer: against torchft itself
    python -m tests.extended.compat.peer_suite --write                # all files against both, their counts, and the table of docs/torchft.md

The files are read from the wheel that is installed in the environment of TORCHFT_X_PEER_PYTHON; no copy remains here.
Each file runs in a process of its own. Some of the tests compare with recorded histories that the wheel does not
contain: for these torchft's own histories are recorded first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.extended.compat.excluded import ALL, EXCLUDED, TIMED
from tests.interpreters import PEER_PYTHON
from tests.unit.compat import page
from tests.util import scaled
from torchft_x import env
from torchft_x.compat.__main__ import PATH

ROOT = Path(__file__).resolve().parents[3]
COUNTS = ROOT / "docs/bench/torchft_tests.json"
LIMIT = 900  # seconds for one file
_TEST_LIMIT = 60  # seconds for one test
_HELPERS = ("_test_utils.py", "_test/diloco_trainer.py")
_FIXTURES = "test_fixtures"
_CONFTEST = """
import importlib, os
import torchft, torchft.checkpointing
torchft.__path__.append({folder!r})
torchft.checkpointing.__path__.append({folder!r} + "/checkpointing")

class Inside:
    def __init__(self, *args, **kwargs):
        raise NotImplementedError("torchft_x has nothing of this name")

for module, name in {inside!r}:
    there = importlib.import_module(module)
    if not hasattr(there, name):
        setattr(there, name, Inside)

def pytest_collection_modifyitems(items):  # --deselect would take a name for the beginning of one
    left_out = os.environ["LEFT_OUT"].split()
    items[:] = [item for item in items if item.nodeid.partition("::")[2] not in left_out]
"""
_INSIDE = (
    ("torchft.manager", "MANAGER_ADDR_KEY"), ("torchft.manager", "REPLICA_ID_KEY"),
    ("torchft.process_group", "_rendezvous"),
)  # fmt: skip
"""Names of torchft's internals without which a test file can't be imported. Here they raise when they are used."""


@dataclass(frozen=True)
class Result:
    file: str  # path below torchft
    name: str  # name of the test, with its class
    outcome: str  # passed, failed or skipped
    words: str = ""


class Suite:
    """A copy of the peer's test files in `folder`, without the rest of the peer."""

    def __init__(self, folder: Path, peer_python: str) -> None:
        command = [peer_python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        self.site = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
        self._folder = folder
        package = folder / "torchft"
        self._source = self.site / "torchft"
        self.files = sorted(str(p.relative_to(self._source)) for p in self._source.rglob("*_test.py"))
        for name in [*self.files, *_HELPERS]:
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self._source / name, package / name)
        (folder / _FIXTURES).mkdir(exist_ok=True)
        (folder / "conftest.py").write_text(_CONFTEST.format(folder=str(package), inside=_INSIDE))

    def record(self, file: str) -> None:
        """Let torchft write the histories with which the tests of this file compare, if there are any."""
        if "WRITE_FIXTURE" in (self._source / file).read_text(encoding="utf-8"):
            self.run(file, peer=True, record=True)

    def run(self, file: str, *, peer: bool, timed: bool = True, record: bool = False) -> list[Result]:
        """Run the tests of one file, and return their results. Against ours those of `EXCLUDED` are left out.

        `peer`: run against torchft itself. `timed`: include those of `TIMED`.
        """
        report = self._folder / "report.xml"
        report.unlink(missing_ok=True)
        paths = [str(self.site)] if peer else [str(PATH), str(ROOT)]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "WRITE_FIXTURE": str(record).lower()}
        environ.pop("TORCHFT_X_RUN_DIR", None)
        # Above 2 a silent group would be lost after their quorum_timeout of 10 s, which we refuse.
        environ[env.TIME_SCALE] = f"{min(env.time_scale(), 2.0):g}"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
        command += ["-c", os.devnull, "--rootdir", str(self._folder), f"--timeout={scaled(_TEST_LIMIT):g}"]
        command += [f"--junit-xml={report}", "-o", "junit_family=xunit1"]
        left_out = {} if peer else EXCLUDED.get(file, {})
        if ALL in left_out:
            return []
        environ["LEFT_OUT"] = " ".join((*left_out, *(() if timed else TIMED.get(file, ()))))
        output = self._folder / "output.txt"
        with output.open("wb") as f:
            process = subprocess.Popen(
                [*command, f"torchft/{file}"], cwd=self._folder, env=environ, stdout=f, stderr=subprocess.STDOUT
            )
            try:
                process.wait(scaled(LIMIT))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if not report.exists():
            return [Result(file, "", "failed", output.read_text(errors="replace")[-3000:])]
        return [_result(file, case) for case in ET.parse(report).getroot().iter("testcase")]


def _result(file: str, case: ET.Element) -> Result:
    where = (case.get("classname") or "").rsplit(".", 1)[-1]
    name = f"{where}::{case.get('name')}" if where[:1].isupper() else str(case.get("name"))
    for tag, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        found = case.find(tag)
        if found is not None:
            return Result(file, name, outcome, f"{found.get('message')}\n{found.text}")
    return Result(file, name, "passed")


def counts(results: Iterable[Result]) -> Counter[str]:
    return Counter(r.outcome for r in results)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="peer_tests", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="below torchft, such as ddp_test.py")
    parser.add_argument("--peer", action="store_true", help="against torchft itself")
    parser.add_argument("--write", action="store_true", help="against both, and write the page's table")
    args = parser.parse_args(argv)
    python = env.read(PEER_PYTHON)
    if python is None:
        print(f"{PEER_PYTHON} is not set: name the interpreter of an environment with torchft-nightly.")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(Path(folder), python)
        files = args.files or suite.files
        if args.write:
            return write(suite, files)
        bad = 0
        for file in files:
            results = suite.run(file, peer=args.peer)
            print(f"{file:45} {dict(counts(results))}", flush=True)
            for failed in (r for r in results if r.outcome == "failed"):
                print(f"    {failed.name}: {failed.words}", flush=True)
                bad += 1
    return min(bad, 1)


def write(suite: Suite, files: Sequence[str]) -> int:
    """Run both sides. Write the counts of each file to `COUNTS`, and their sums to the page's table."""
    rows, totals = {}, [0] * 4
    for file in files:
        suite.record(file)
        theirs, ours = (counts(suite.run(file, peer=peer)) for peer in (True, False))
        of = theirs["passed"] + theirs["failed"]
        row = [theirs["passed"], ours["passed"], ours["failed"], of - ours["passed"] - ours["failed"]]
        print(file, row, flush=True)
        if of:
            rows[file] = row
            totals = [t + n for t, n in zip(totals, row, strict=True)]
    head = ["passed by torchft itself", "passed by torchft_x", "failed", "left out"]
    lines = ",\n".join(f"  {json.dumps(file)}: {json.dumps(row)}" for file, row in rows.items())
    COUNTS.write_text(f'{{\n "columns": {json.dumps(head)},\n "files": {{\n{lines}\n }}\n}}\n', encoding="utf-8")
    text = page.PAGE.read_text(encoding="utf-8")
    table = page.table(head, [[str(n) for n in totals]])
    page.PAGE.write_text(
        page.put(text, "counts", table, ": python -m tests.extended.compat.peer_suite --write"), "utf-8"
    )
    return min(totals[2], 1)


if __name__ == "__main__":
    sys.exit(main())
