"""The list of tests that CI leaves out names tests that are there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.nightly import NIGHTLY, replaced_by

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", NIGHTLY)
def test_what_is_left_out_is_there(name: str) -> None:
    file, _, test = name.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert not test or test.split("[")[0] in functions


def test_a_test_with_parameters_is_left_out_whole_or_by_one() -> None:
    whole = "tests/benchmarks/test_runs.py::test_the_peer_is_measured_too"
    one = next(name for name in NIGHTLY if name.endswith("]"))
    assert replaced_by(f"{whole}[any]") == NIGHTLY[whole]
    assert replaced_by(one) == NIGHTLY[one]
    assert replaced_by(one.replace("]", "-other]")) is None
    assert replaced_by("tests/test_imports.py::test_x") is None
