from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster import Cluster, cluster, missing


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two nodes, one for all tests: each takes a namespace of its own."""
    if missing():
        pytest.skip(missing())
    with cluster(tmp_path_factory.mktemp("kubernetes"), nodes=2) as made:
        yield made
