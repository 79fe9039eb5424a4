"""Rules about warm attempts: golden values for pure functions."""

from __future__ import annotations

import pytest

from tests.unit.launch.lines import ROOT
from torchft_x.launch.workers.warm_rules import imported_by, is_installed, why_first_is_cold, why_never


@pytest.mark.parametrize(
    ("given", "why"), [({}, None), ({"TORCHFT_X_WARM": "1"}, None), ({"TORCHFT_X_WARM": "0"}, "TORCHFT_X_WARM is 0")]
)
def test_groups_that_are_never_warm(given: dict[str, str], why: str | None) -> None:
    assert why_never(given) == why


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
    assert imported_by(text) == [("a.b", ()), ("c", ()), ("e.f", ("g",))]
    assert imported_by("import (") == []


def test_only_files_below_an_installed_folder_are_installed() -> None:
    assert is_installed("/v/site-packages/x/__init__.py", ["/v/site-packages"])
    assert not is_installed("/v/site-packages-mine/x.py", ["/v/site-packages"])
    assert not is_installed("/home/me/x.py", ["/v/site-packages"])
    assert not is_installed(None, ["/v/site-packages"])  # a namespace: files of several owners


MAY_SET = "may set what torch or torchft_x reads when it is imported"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("import torch", None),
        ('"""Doc."""\nfrom __future__ import annotations\nimport os, numpy as np\nfrom torch import nn', None),
        ("import warnings\nwarnings.filterwarnings('ignore')\nimport torch\nfrom torchft_x import Manager", None),
        ("import torch\nimport os\nos.environ['TORCH_LOGS'] = 'all'\nimport mine", None),
        ("import torch\nfrom torchft_x import Manager\nimport transformers", None),
        ("import os\nos.environ['TORCH_LOGS'] = 'all'\nimport torch", f"the script's line 2 {MAY_SET}"),
        ("import torch\nimport os\nos.putenv('A', 'b')\nimport torchft_x", f"the script's line 3 {MAY_SET}"),
        ("from os import environ as e\nimport torch\ne['A'] = 'b'\nimport torchft_x", f"the script's line 1 {MAY_SET}"),
        ("import importlib\nimportlib.import_module('mine')\nimport torch", f"the script's line 2 {MAY_SET}"),
        ("try:\n    import mine\nexcept ImportError:\n    mine = None\nimport torch", f"the script's line 1 {MAY_SET}"),
        ("import mine\nimport torch", "the script imports mine before torch or torchft_x"),
        ("import torch\nimport mine.settings\nimport torchft_x", "the script imports mine before torch or torchft_x"),
        ("from . import mine\nimport torch", "the script imports . before torch or torchft_x"),
        ("print('hello')", "the script imports no torch at its top level"),
        ("def f():\n    import torch", "the script imports no torch at its top level"),
        ("import torch (", "the script imports no torch at its top level"),
    ],
)  # fmt: skip
def test_a_first_attempt_is_forked_only_if_the_script_cannot_tell(script: str, why: str | None) -> None:
    assert why_first_is_cold(script) == why


@pytest.mark.parametrize("name", ["train_ddp", "train_hsdp", "train_diloco"])
def test_the_packaged_scripts_may_be_forked_from_the_first_attempt_on(name: str) -> None:
    assert why_first_is_cold((ROOT / "scripts" / f"{name}.py").read_text()) is None
