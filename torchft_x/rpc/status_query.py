"""Questions and orders to a lighthouse, for people and tools."""

from __future__ import annotations

import json
from typing import Any

from torchft_x.errors import RefusedError
from torchft_x.net import Address
from torchft_x.rpc.proto import torchft_x_pb2 as pb
from torchft_x.rpc.transport import grpc_options
from torchft_x.rpc.transport.grpc_errors import call
from torchft_x.rpc.transport.limits import clean
from torchft_x.rpc.transport.token import check_token, metadata


def lighthouse_status(address: Address, token: str | None = None, timeout: float = 5.0) -> dict[str, Any]:
    """Return the lighthouse's status within `timeout` seconds; `version` and `wire` are those of its process.

    Raises `TokenError`, `UnreachableError`, `DeadlineError`; `RefusedError` if the server is another program."""
    return _object(_ask("Status", b"", address, token, timeout), address)


def lighthouse_overview(address: Address, token: str | None = None, timeout: float = 5.0) -> dict[str, Any]:
    """Return the overview of the lighthouse's job (docs/operate.md). Raises the same errors as `lighthouse_status`."""
    return _object(_ask("Overview", b"", address, token, timeout), address)


def give_order(kind: str, group: str, address: Address, token: str | None, timeout: float = 15.0) -> str:
    """Kill, drain or resume a group (rpc.lighthouse.page.orders). Return a sentence about it. Raises as `lighthouse_status`."""
    request = pb.OrderRequest(kind=kind, group=group).SerializeToString()
    reply = _ask("Order", request, address, token, timeout)
    if not isinstance(reply, str):
        raise RefusedError(
            f"The lighthouse at {address.url} answered with something else; is it another program, or another version?"
        )
    return clean(reply)


def _ask(method: str, request: bytes, address: Address, token: str | None, timeout: float) -> Any:
    path, what = f"/{grpc_options.STATUS}/{method}", f"lighthouse at {address.url}"
    with grpc_options.channel(address) as channel:
        data = call(channel, path, request, what, timeout=timeout, metadata=metadata(check_token(token)))
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _object(value: Any, address: Address) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RefusedError(
            f"The lighthouse at {address.url} answered with something else than its status; is it another program, or "
            "another version of torchft_x?"
        )
    return value
