"""Upper bounds for the size of files, functions and packages."""

from __future__ import annotations

import ast
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from torchft_x import env

PACKAGE = Path(__file__).parents[2] / "torchft_x"
FILE, FUNCTION, FILES = 400, 80, 10  # lines, lines, files of a package
LARGER = {
    "core/group/machine.py",
    "core/lighthouse/machine.py",
    "rpc/group/shell.py",
    "rpc/lighthouse/server.py",
    "train/manager.py",
    "train/step/step_loop.py",
}
"""Files above the bound, which may not grow beyond 520 lines."""
SOURCES = {p.relative_to(PACKAGE): p for p in sorted(PACKAGE.rglob("*.py")) if not p.name.endswith("_pb2.py")}


def test_files_are_short() -> None:
    for name, path in SOURCES.items():
        lines = path.read_text(encoding="utf-8").count("\n")
        assert lines <= (520 if str(name) in LARGER else FILE), f"{name} has {lines} lines: split it"


def test_functions_are_short() -> None:
    for name, path in SOURCES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                assert lines <= FUNCTION, f"{name}: {node.name} has {lines} lines: split it"


def test_packages_are_small() -> None:
    files = Counter(str(name.parent) for name in SOURCES if name.stem != "__init__" and name.parent != Path("."))
    assert max(files.values()) <= FILES, f"{files.most_common(1)}: give files that decide one thing their own package"


BUDGET = {  # package: (lines of its files, numbers at the top of its modules)
    "": (2043, 23),
    "comm": (6267, 39),
    "compat": (907, 1),
    "core": (9049, 41),
    "launch": (15808, 89),
    "observe": (4355, 37),
    "rpc": (6478, 47),
    "train": (10576, 40),
    "transfer": (5585, 40),
}
"""Upper bounds. Raise one only with a line in the commit's message that says what went out instead."""
VARIABLES = 60
"""Upper bound of the environment variables that torchft_x reads."""
TIMES = 56
"""Upper bound of the times at the top of modules. A time that a constant of `torchft_x/timing.py` stands for is read there."""


@pytest.mark.parametrize("package", BUDGET)
def test_a_package_keeps_its_budget(package: str) -> None:
    lines = numbers = 0
    for name, path in SOURCES.items():
        if (name.parts[0] if len(name.parts) > 1 else "") == package:
            text = path.read_text(encoding="utf-8")
            lines += text.count("\n")
            numbers += sum(_is_number(node) for node in ast.parse(text).body)
    assert lines <= BUDGET[package][0], f"{package or 'the top'} has {lines} lines"
    assert numbers <= BUDGET[package][1], f"{package or 'the top'} has {numbers} numbers at the top of its modules"


def test_all_packages_have_a_budget() -> None:
    assert {name.parts[0] if len(name.parts) > 1 else "" for name in SOURCES} == set(BUDGET)


def test_environment_variables_are_few() -> None:
    found = [
        value for name, value in vars(env).items() if name.isupper() and isinstance(value, str) and value.isupper()
    ]
    assert len(found) <= VARIABLES, f"env.py names {len(found)} variables"


def test_times_are_few() -> None:
    found = []
    for name, path in SOURCES.items():
        text = path.read_text(encoding="utf-8")
        for node, after in pairwise([*ast.parse(text).body, ast.Pass()]):
            docstring = ast.unparse(after) if isinstance(after, ast.Expr) else ""
            comment = text.splitlines()[node.lineno - 1].partition("#")[2]
            if name != Path("timing.py") and _is_number(node) and "seconds" in (comment + docstring).lower():
                found.append(f"{name}:{node.lineno}")
    assert len(found) <= TIMES, f"{len(found)} times outside of timing.py: {', '.join(found)}"


def _is_number(node: ast.stmt) -> bool:
    """Return whether this is an assignment of a number, or of a product or sum of numbers, to a name."""
    value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
    return value is not None and all(
        isinstance(part, (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop))
        or (isinstance(part, ast.Constant) and type(part.value) in (int, float))
        for part in ast.walk(value)
    )
