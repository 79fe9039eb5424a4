"""The run's token: `authorization: Bearer <token>` on every call, checked before any handler runs."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio

from torchft_x.errors import ConfigError

MAX_TOKEN = 512
"""Characters. Ours have 43 (256 random bits); the limit keeps a wrong file from becoming a header."""

_KEY = "authorization"

Metadata = tuple[tuple[str, str], ...]


def check_token(token: str | None) -> str | None:
    """The token itself, or None. Raises `ConfigError` if it can't travel in a header (never shows the token)."""
    if token is None:
        return None
    if not token or len(token) > MAX_TOKEN or not all(33 <= ord(c) <= 126 for c in token):
        raise ConfigError(
            f"The token must be 1 to {MAX_TOKEN} printable ASCII characters without spaces; "
            'make one with: python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    return token


def metadata(token: str | None) -> Metadata:
    """What a client sends along."""
    return () if token is None else ((_KEY, f"Bearer {token}"),)


def is_allowed(sent: Iterable[tuple[str, str | bytes]] | None, token: str | None) -> bool:
    """Whether this metadata carries the token. Compared in constant time. Without a token everybody is allowed."""
    if token is None:
        return True
    for key, value in sent or ():
        if key == _KEY:
            text = value if isinstance(value, bytes) else value.encode()
            return hmac.compare_digest(text, f"Bearer {token}".encode())
    return False


class TokenCheck(grpc.aio.ServerInterceptor):
    """Refuses every call without the token with UNAUTHENTICATED, as soon as its headers are here: nothing of its message
    is gathered, and the handler never sees it."""

    def __init__(self, token: str | None) -> None:
        self._token = token  # None: open to everybody

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        sent = details.invocation_metadata
        if handler is None or is_allowed(sent, self._token):
            return handler
        # A handler of streams, whatever the method is: one of a message would be called when all of that is here.
        other = any(key == _KEY for key, _ in sent or ())
        return grpc.stream_stream_rpc_method_handler(_deny_other if other else _deny_none)


# Not even a digest of either token is told: a short one could be guessed from it.
async def _deny_other(_request: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "our token is not the one it was started with")


async def _deny_none(_request: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "it was started with a token, and we have none")
