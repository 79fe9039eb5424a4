from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.extended.slurm.cluster import SlurmCluster, missing, running


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """Four nodes on this host. A test leaves it as it found it: no jobs, no node down."""
    if sentence := missing():
        pytest.skip(sentence)
    # pytest's own path is too long for a socket
    place = tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True)
    with place as folder, running(SlurmCluster(Path(folder), 4)) as cluster:
        yield cluster
