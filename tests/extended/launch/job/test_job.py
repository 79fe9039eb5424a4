"""Whole jobs by the real `torchx run`, with toy scripts that know nothing of us: what a launcher owes, and no more."""

from __future__ import annotations

import socket

from tests.process.launch.job.test_job import (
    SLEEPER,
    launch,  # noqa: F401
)


def test_nobody_at_the_address_of_the_lighthouse(launch) -> None:
    with socket.socket() as taken:  # bound, so that nobody else gets the port; it does not listen
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        job = launch(SLEEPER, "--lighthouse", address)
        assert job.wait() == 1
    assert f"{address}: Connection refused" in job.text()
    assert "Traceback" not in job.text()
