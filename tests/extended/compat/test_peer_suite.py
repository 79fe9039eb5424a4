"""Some of torchft's own test files against torchft_x under torchft's name; python -m tests.extended.compat.peer_suite runs all."""

from __future__ import annotations

import pytest

from tests.extended.compat.peer_suite import Suite, counts
from tests.extended.rpc.test_peer import HOW
from tests.interpreters import PEER_PYTHON
from torchft_x import env

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    python = env.read(PEER_PYTHON)
    if python is None:
        pytest.skip(HOW)
    return Suite(tmp_path_factory.mktemp("torchft"), python)


@pytest.mark.parametrize(
    ("file", "passed"),
    [
        ("coordination_test.py", 1),
        ("ddp_test.py", 4),
        ("_test/managed_work_test.py", 4),
        ("lighthouse_test.py", 3),
        ("manager_integ_test.py", 5),
        ("reconfigure_test.py", 3),
    ],
)
def test_a_file_of_theirs(suite: Suite, file: str, passed: int) -> None:
    results = suite.run(file, peer=False, timed=False)
    assert [r for r in results if r.outcome == "failed"] == []
    assert counts(results)["passed"] == passed
