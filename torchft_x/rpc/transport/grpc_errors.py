"""gRPC statuses and our exceptions, in both directions: one table, so that a server's error arrives as itself."""

from __future__ import annotations

from typing import Any

import grpc

from torchft_x import tls
from torchft_x.errors import (
    ConfigError,
    DeadlineError,
    FencedError,
    RefusedError,
    StepError,
    StrangerError,
    TokenError,
    TorchftXError,
    UnreachableError,
)
from torchft_x.rpc.transport.limits import MAX_TEXT, clean

_TABLE: list[tuple[type[TorchftXError], grpc.StatusCode]] = [  # subclasses before their bases
    (TokenError, grpc.StatusCode.UNAUTHENTICATED),
    (FencedError, grpc.StatusCode.ABORTED),
    (RefusedError, grpc.StatusCode.FAILED_PRECONDITION),
    (ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
    (DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (UnreachableError, grpc.StatusCode.UNAVAILABLE),
    (StepError, grpc.StatusCode.DATA_LOSS),
]
# A connection that breaks at an unlucky moment can end with these statuses, so they are not refusals.
_BROKEN = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
_CODES = {code: error for error, code in _TABLE} | {grpc.StatusCode.CANCELLED: DeadlineError}


def code_of(error: BaseException) -> grpc.StatusCode:
    """Return the status that a server answers this error with."""
    for kind, code in _TABLE:
        if isinstance(error, kind):
            return code
    return grpc.StatusCode.INTERNAL


def call(channel: grpc.Channel, path: str, request: bytes, what: str, **options: Any) -> bytes:
    """Call a unary method with gRPC's `options`. Raises the exception for its failure; `what`: see `error_from`."""
    try:
        return bytes(channel.unary_unary(path)(request, **options))
    except grpc.RpcError as e:
        raise error_of(e, what) from None


def error_of(rpc_error: grpc.RpcError, what: str) -> TorchftXError:
    """Return the exception for a failed call; see `error_from`."""
    return error_from(rpc_error.code(), rpc_error.details(), what)


def error_from(code: grpc.StatusCode, details: str | None, what: str) -> TorchftXError:
    """Return the exception for a status. `what` is the server with its address, e.g. ``lighthouse at http://...``.

    torchft's Rust servers answer CANCELLED when a deadline has passed.
    """
    details = clean((details or "")[:MAX_TEXT].strip())
    if code == grpc.StatusCode.UNAVAILABLE and not _is_sentence(details):
        return UnreachableError(f"The {what} can't be reached ({tls.reason(details) or details or 'no answer'}).")
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return TokenError(
            f"The {what} refused our call: {details or 'our token is wrong or missing'}; "
            "set TORCHFT_X_TOKEN or TORCHFT_X_TOKEN_FILE to the token of this run."
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return StrangerError(
            f"The {what} doesn't know this call; is it another program, or torchft's own? Use torchft_x's."
        )
    if code in _BROKEN:
        return UnreachableError(f"The {what} answered {code.name}: {details.rstrip('.') or 'no reason given'}.")
    kind = _CODES.get(code, RefusedError)
    if kind is DeadlineError and not _is_sentence(details):
        return DeadlineError(f"The {what} did not answer in time.")
    return kind(
        details if _is_sentence(details) else f"The {what} answered {code.name}: {details or 'no reason given'}."
    )


def _is_sentence(details: str) -> bool:
    """Return whether the text is one of our sentences. They end in a full stop, gRPC's own texts don't."""
    return details.endswith(".")
