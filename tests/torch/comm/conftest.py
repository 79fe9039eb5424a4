"""One store for all tests of comm: connecting to a TCPStore looks up host names, which is slow on some machines."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist

from tests.torch.comm.members import Nursery
from tests.util import scaled
from torchft_x.comm.store.create import host_store

_numbers = itertools.count()


@pytest.fixture(scope="session")
def store() -> dist.TCPStore:
    return host_store("127.0.0.1", scaled(20.0))[0]


@pytest.fixture
def meeting(store: dist.TCPStore) -> Callable[[], str]:
    """Return a function that returns a store address with a new prefix at each call."""
    return lambda: f"127.0.0.1:{store.port}/test/{next(_numbers)}"


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the conformance suite with every number of members that a kind of group can have."""
    if "members" in metafunc.fixturenames and metafunc.cls is not None:
        metafunc.parametrize("members", metafunc.cls.sizes, indirect=True, ids=lambda n: f"{n}ranks")
