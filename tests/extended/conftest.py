from __future__ import annotations

import pytest

from tests.extended.matrix.places import Workshop

pytest.register_assert_rewrite("tests.extended.matrix.cells")


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Environments with torchft_x in them, each made once per run."""
    return Workshop(tmp_path_factory.mktemp("places"))
