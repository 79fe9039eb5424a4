from __future__ import annotations

import pytest

from tests.extended.matrix.installs import Workshop

pytest.register_assert_rewrite("tests.extended.matrix.cells")


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Return the maker of environments with torchft_x, each made once per run."""
    return Workshop(tmp_path_factory.mktemp("installs"))
