"""A Slurm cluster for the tests that want one."""

from __future__ import annotations

import shutil
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
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # pytest's own path is too long for a socket
    try:
        with running(SlurmCluster(folder, 4)) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)
