"""A server's error arrives at the client as itself."""

from __future__ import annotations

import grpc
import pytest

from torchft_x import errors
from torchft_x.rpc.transport.grpc_errors import code_of, error_from


@pytest.mark.parametrize("name", ["Token", "Fenced", "Refused", "Config", "Deadline", "Unreachable", "Step"])
def test_round_trip(name: str) -> None:
    kind = getattr(errors, f"{name}Error")
    back = error_from(code_of(kind("Because of this.")), "Because of this.", "lighthouse at http://x:1")
    assert type(back) is kind
    assert "Because of this" in str(back)


@pytest.mark.parametrize(
    ("code", "details", "kind", "sentence"),
    [
        (grpc.StatusCode.UNAVAILABLE, "connect: Connection refused", errors.UnreachableError, "Connection refused"),
        (grpc.StatusCode.CANCELLED, "Timeout expired", errors.DeadlineError, "did not answer in time"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, None, errors.DeadlineError, "did not answer in time"),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", errors.StrangerError, "another program"),
        (grpc.StatusCode.UNAUTHENTICATED, "wrong or missing token", errors.TokenError, "TORCHFT_X_TOKEN"),
        (grpc.StatusCode.INTERNAL, "oops", errors.UnreachableError, "INTERNAL: oops"),
        (grpc.StatusCode.UNKNOWN, "", errors.UnreachableError, "no reason given"),
        (grpc.StatusCode.NOT_FOUND, "what", errors.RefusedError, "NOT_FOUND: what"),
    ],
)
def test_foreign_statuses_become_sentences_with_the_address(
    code: grpc.StatusCode, details: str | None, kind: type[Exception], sentence: str
) -> None:
    error = error_from(code, details, "lighthouse at http://x:1")
    assert type(error) is kind
    assert sentence in str(error)
    assert "http://x:1" in str(error)
    assert str(error).endswith(".")
