"""What we set in the environment of others."""

from __future__ import annotations

import pytest

from torchft_x import __main__, env
from torchft_x.errors import ConfigError


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
    facts = env.AttemptEnv(number=1, token="abc", folder="/tmp/attempt")
    monkeypatch.setenv(env.ATTEMPT, str(facts))
    assert env.read_attempt() == facts
    with pytest.raises(SystemExit):
        __main__.main(["doctor", "--help"])
    assert env.read_attempt() == env.AttemptEnv()


@pytest.mark.parametrize("value", ["3", "{", '{"life": 1}'])
def test_an_attempt_of_another_version_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="is not from a supervisor of this version"):
        env.read_attempt({env.ATTEMPT: value})
