"""The page says what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import Golden
from tests.unit.compat import page
from torchft_x.compat.differences import GONE, MissingName

ROOT = Path(__file__).parents[3]


def test_the_pages_tables_are_those_of_the_code(golden: Golden) -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    for name, table in page.TABLES.items():
        text = page.put(text, name, table())
    golden.check(page.PAGE, text)


@pytest.mark.parametrize("gone", GONE)
def test_each_defect_that_is_gone_has_its_test(gone: MissingName) -> None:
    file, _, name = gone.test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
