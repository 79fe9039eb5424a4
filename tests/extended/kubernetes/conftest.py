from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.extended.kubernetes.cluster import Cluster, cluster, missing
from tests.extended.kubernetes.shell import Shell
from tests.extended.kubernetes.space import Space


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster of two nodes, which all tests share. Each test uses a namespace of its own."""
    if missing():
        pytest.skip(missing())
    with cluster(tmp_path_factory.mktemp("kubernetes"), nodes=2) as made:
        yield made


@pytest.fixture
def shell(kubernetes: Cluster, tmp_path: Path) -> Iterator[Shell]:
    made = Shell(Space(kubernetes), tmp_path)
    yield made
    kubernetes.api.delete(f"/api/v1/namespaces/{made.space.name}")
