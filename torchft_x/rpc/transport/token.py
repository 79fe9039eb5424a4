"""The run's token: `authorization: Bearer <token>` on every call, checked before any handler runs."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio

from torchft_x.errors import ConfigError

MAX_TOKEN = 512
"""Characters of a token. Ours have 43 (256 random bits); the limit keeps the content of a wrong file out of a
header."""

_KEY = "authorization"

Metadata = tuple[tuple[str, str], ...]


def check_token(token: str | None) -> str | None:
    """Return the token, or None. Raises `ConfigError`, which never shows the token, if it can't travel in a header."""
    if token is None:
        return None
    if not token or len(token) > MAX_TOKEN or not all(33 <= ord(c) <= 126 for c in token):
        raise ConfigError(
            f"The token must be 1 to {MAX_TOKEN} printable ASCII characters without spaces; "
            'make one with: python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    return token


def metadata(token: str | None) -> Metadata:
    """Return the metadata by which a client sends the token with a call."""
    return () if token is None else ((_KEY, f"Bearer {token}"),)


def is_allowed(sent: Iterable[tuple[str, str | bytes]] | None, token: str | None) -> bool:
    """Return whether this metadata carries the token, compared in constant time. Without a token all is allowed."""
    if token is None:
        return True
    for key, value in sent or ():
        if key == _KEY:
            text = value if isinstance(value, bytes) else value.encode()
            return hmac.compare_digest(text, f"Bearer {token}".encode())
    return False


class TokenCheck(grpc.aio.ServerInterceptor):
    """Interceptor that refuses every call without the token with UNAUTHENTICATED as soon as its headers arrive.

    It reads no message of such a call, and the handler never sees the call."""

    def __init__(self, token: str | None) -> None:
        self._token = token  # None: open to everybody

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        sent = details.invocation_metadata
        if handler is None or is_allowed(sent, self._token):
            return handler
        # The refusing handler is one of streams for every method: gRPC calls a unary handler only after the whole
        # message.
        other = any(key == _KEY for key, _ in sent or ())
        return grpc.stream_stream_rpc_method_handler(_deny_other if other else _deny_none)


# The refusals contain not even a digest of either token, from which a short token could be guessed.
async def _deny_other(_request: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "our token is not the one it was started with")


async def _deny_none(_request: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "it was started with a token, and we have none")
