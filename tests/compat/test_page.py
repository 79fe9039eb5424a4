"""The page says what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat import page
from torchft_x.compat.differences import GONE, Gone

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(page.TABLES))
def test_the_pages_tables_are_those_of_the_code(name: str) -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.put(text, name, page.TABLES[name]()) == text, "python -m tests.compat.page writes them"


@pytest.mark.parametrize("gone", GONE)
def test_each_defect_that_is_gone_has_its_test(gone: Gone) -> None:
    file, _, name = gone.test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
