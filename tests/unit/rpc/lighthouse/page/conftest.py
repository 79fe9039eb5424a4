from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.rpc.lighthouse.page.served import Served, served


@pytest.fixture(scope="module")
def page() -> Iterator[Served]:
    """Yield a lighthouse with its page, shared by all tests of a module."""
    with served() as made:
        yield made
