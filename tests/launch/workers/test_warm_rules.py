"""Rules about warm lives: golden values for pure functions."""

from __future__ import annotations

import pytest

from torchft_x.launch.workers.warm_rules import difference, imported_by, is_installed, why_never


@pytest.mark.parametrize(
    ("given", "why"),
    [({}, None), ({"TORCHFT_X_WARM": "1"}, None), ({"TORCHFT_X_WARM": "0"}, "TORCHFT_X_WARM is 0")],
)
def test_groups_that_are_never_warm(given: dict[str, str], why: str | None) -> None:
    assert why_never(given) == why


def test_what_belongs_to_one_life_may_differ_from_the_parents_and_nothing_else() -> None:
    parent = {"A": "1", "TORCHFT_X_LIFE": "a", "TORCHFT_X_ATTEMPT": "0", "TORCHFT_LIGHTHOUSE": "x"}
    life = {"A": "1", "TORCHFT_X_LIFE": "b", "TORCHFT_X_ATTEMPT": "1", "TORCHFT_LIGHTHOUSE": "y"}
    assert difference(parent, life) is None
    assert difference(parent, {**life, "A": "2"}) == "A has changed since the warm parent was started"
    assert difference(parent, {**life, "LD_PRELOAD": "x"}) == "LD_PRELOAD has changed since the warm parent was started"
    assert difference({**parent, "B": ""}, life) == "B has changed since the warm parent was started"


def test_imports_are_read_from_the_top_of_a_script() -> None:
    text = """
import a.b, c as d
from e.f import g
from . import h
from .i import j
import a.b
def later():
    import k
"""
    assert imported_by(text) == ["a.b", "c", "e.f"]
    assert imported_by("import (") == []


def test_only_files_below_an_installed_folder_are_installed() -> None:
    assert is_installed("/v/site-packages/x/__init__.py", ["/v/site-packages"])
    assert not is_installed("/v/site-packages-mine/x.py", ["/v/site-packages"])
    assert not is_installed("/home/me/x.py", ["/v/site-packages"])
    assert not is_installed(None, ["/v/site-packages"])  # a namespace: files of several owners
