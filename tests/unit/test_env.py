"""What we set in the environment of others."""

from __future__ import annotations

import pytest

from torchft_x import env


@pytest.mark.parametrize(
    ("environ", "version", "says"),
    [
        ({}, "1.85.1", "-event_engine_listener"),
        ({}, "1.60.0rc1", "-event_engine_listener"),
        ({"GRPC_EXPERIMENTS": "mine"}, "1.85.1", "mine"),
        ({}, "1.86.0", None),
        ({}, "2.0", None),
    ],
)
def test_a_lighthouse_gets_the_older_listener_of_a_grpc_that_has_it_unless_the_user_says_otherwise(
    environ: dict[str, str], version: str, says: str | None
) -> None:
    env.prepare_lighthouse(environ, version)
    assert environ.get("GRPC_EXPERIMENTS") == says
