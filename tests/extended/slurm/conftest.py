from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.extended.slurm.cluster import SlurmCluster, missing, running


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """Start four nodes on this host, shared by all tests. A test leaves no jobs and no node down."""
    if sentence := missing():
        pytest.skip(sentence)
    # The path of pytest's own folder is too long for a socket.
    temporary = tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True)
    with temporary as folder, running(SlurmCluster(Path(folder), 4)) as cluster:
        yield cluster
