from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.rpc.lighthouse.page.served import Served, served


@pytest.fixture(scope="module")
def page() -> Iterator[Served]:
    """A lighthouse with its page, for all tests of a module."""
    with served() as made:
        yield made
