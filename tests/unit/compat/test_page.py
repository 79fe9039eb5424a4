"""docs/torchft.md says what the code and the tests say. `pytest --rewrite` writes the table of missing names."""

from __future__ import annotations

import re
from pathlib import Path

from tests.golden import Golden
from tests.unit.compat.page import PAGE, put, table
from torchft_x.compat.names import LACKING

ROOT = Path(__file__).parents[3]


def test_the_missing_names_are_those_of_the_code(golden: Golden) -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = [[f"`{name}`", why] for name, why in LACKING.items()]
    golden.check(PAGE, put(text, "lacking", table(["torchft", "instead"], rows)))


def test_each_defect_that_is_gone_has_its_test() -> None:
    tests = re.findall(r"\| `(tests/\S+)::(\w+)` \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(tests) > 10
    for file, name in tests:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {name}"
