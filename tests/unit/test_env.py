"""What we set in the environment of others."""

from __future__ import annotations

import pytest

from torchft_x import __main__, env


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


def test_a_job_that_a_trainer_starts_knows_nothing_of_that_trainers_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its lighthouse would take itself for one that was restarted, and wait for groups that there never were."""
    for name in (env.ATTEMPT, env.ATTEMPT_TOKEN, env.PRIVATE, env.MEMORY_SLOTS, env.LIGHTHOUSE_FILE):
        monkeypatch.setenv(name, "1")
    with pytest.raises(SystemExit):
        __main__.main(["doctor", "--help"])
    assert env.read_int(env.ATTEMPT, 0) == 0
    assert not env.read(env.PRIVATE)


def test_a_lighthouse_that_is_started_again_keeps_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.ATTEMPT, "3")
    env.leave_outer_job()
    assert env.read_int(env.ATTEMPT) == 3
