"""The figures of one checkout as a dictionary, and of one or two as a table."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.structure import source
from tests.util import scaled

Figures = dict[str, Any]
LIMIT = 300.0  # seconds that the measured job may take

# (what it is, how it is read from the figures); the order of the table
ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("package: files", lambda f: str(f["package"]["files"])),
    ("package: lines", lambda f: f"{f['package']['lines']:,}"),
    ("protocol: files", lambda f: str(f["protocol"]["files"])),
    ("protocol: lines", lambda f: f"{f['protocol']['lines']:,}"),
    ("packages", lambda f: str(f["packages"])),
    ("largest package: files", lambda f: f"{f['largest_package']['files']} ({f['largest_package']['name']})"),
    ("import arrows between modules", lambda f: f"{f['arrows']['modules']:,}"),
    ("import arrows between packages", lambda f: str(f["arrows"]["packages"])),
    ("import circles of modules", lambda f: str(len(f["circles"]["modules"]))),
    ("import circles of packages", lambda f: str(len(f["circles"]["packages"]))),
    ("files over 300 lines", lambda f: str(f["long_files"]["300"])),
    ("files over 400 lines", lambda f: str(f["long_files"]["400"])),
    ("functions over 50 lines", lambda f: str(f["long_functions"])),
    ("longest function: lines", lambda f: str(f["longest_functions"][0]["lines"])),
)
MEASURED = (
    ("step: files, training thread", "step", "training_thread", "files"),
    ("step: calls into another file, training thread", "step", "training_thread", "crossings"),
    ("step: files, all threads", "step", "all_threads", "files"),
    ("step: calls into another file, all threads", "step", "all_threads", "crossings"),
    ("join: files, training thread", "join", "training_thread", "files"),
    ("join: calls into another file, training thread", "join", "training_thread", "crossings"),
    ("join: files, all threads", "join", "all_threads", "files"),
    ("join: calls into another file, all threads", "join", "all_threads", "crossings"),
)


def counted(root: Path) -> Figures:
    """What the source says. Files are counted without ``__init__``, their lines with it."""
    modules = source.read(root)
    files = [m for m in modules if not m.is_face]
    protocol = [m for m in modules if source.is_protocol(m)]
    functions = source.functions(modules)
    between = source.arrows(modules)
    packages = source.package_arrows(modules, between)
    sizes = Counter(m.package for m in files if m.package)
    largest = max(sorted(sizes), key=lambda p: sizes[p])
    return {
        "package": {"files": len(files), "lines": sum(m.lines for m in modules)},
        "protocol": {"files": sum(not m.is_face for m in protocol), "lines": sum(m.lines for m in protocol)},
        "packages": len(packages),
        "largest_package": {"name": largest, "files": sizes[largest]},
        "arrows": {
            "modules": sum(len(targets) for targets in between.values()),
            "packages": sum(len(targets) for targets in packages.values()),
        },
        "circles": {"modules": source.circles(between), "packages": source.circles(packages)},
        "long_files": {str(n): sum(m.lines > n for m in files) for n in (300, 400)},
        "long_functions": sum(f.lines > 50 for f in functions),
        "longest_functions": [{"name": f"{f.module}.{f.name}", "lines": f.lines} for f in functions[:5]],
    }


def measured(root: Path) -> Figures:
    """What a step and a join visit (visits.py); takes half a minute. Raises `CalledProcessError` if the job fails."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "visits.json"
        command = [sys.executable, str(Path(__file__).with_name("visits.py")), str(root), str(out)]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=True, timeout=scaled(LIMIT))
        return dict(json.loads(out.read_text(encoding="utf-8")))


def lines(columns: Sequence[tuple[str, Figures]]) -> list[str]:
    """A Markdown table: one column per checkout, headed by its name."""
    rows = [["", *(name for name, _ in columns)]]
    rows += [[what, *(read(figures) for _, figures in columns)] for what, read in ROWS]
    if all("step" in figures for _, figures in columns):
        rows += [[what, *(f"{f[kind][who][n]:,}" for _, f in columns)] for what, kind, who, n in MEASURED]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    out = []
    for number, row in enumerate(rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        out.append(f"| {' | '.join(cells)} |")
        if number == 0:
            out.append(f"|-{'-' * widths[0]}-|" + "".join(f"-{'-' * width}:|" for width in widths[1:]))
    return out
